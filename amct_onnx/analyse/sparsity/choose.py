"""Which layers of a model stay as they are, so that the others save what they have to at the least loss."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from onnx import ModelProto

from amct_onnx.analyse.cost import Shapes
from amct_onnx.analyse.fitting.data import FittingData
from amct_onnx.analyse.fitting.evidence import check_finite
from amct_onnx.analyse.shapes import held_out
from amct_onnx.analyse.sparsity.options import SparsityGoal
from amct_onnx.analyse.sparsity.savings import ZeroSavings
from amct_onnx.analyse.sparsity.search import layers_to_leave
from amct_onnx.analyse.sparsity.sensitivity import SparseSensitivity
from amct_onnx.errors import ArgumentError
from amct_onnx.rewrite.sparsity import open_sparsifiable


def choose_layers(
    proto: ModelProto,
    base_dir: Path | None,
    shapes: Shapes,
    left: Mapping[str, str],
    goal: SparsityGoal,
    given: FittingData,
) -> dict[str, str]:
    """The layers that stay as they are, each with the reason.

    Args:
        proto: the model, its functions with layers inlined; not changed.
        base_dir: folder of its external weights.
        shapes: sizes of its tensors.
        left: layers that stay in any case -> why.
        goal: what is wanted.
        given: the data.

    Raises:
        OutOfReachError: so much cannot be saved.
        ArgumentError: the results tell nothing on this data.
        DataError: no layer is fed anything finite.
    """
    opened = open_sparsifiable(proto, base_dir, left)
    # What is lost is measured on feeds that nothing was fitted to, where there are enough.
    rest, probes = held_out(proto, base_dir, given)
    sensitivity = SparseSensitivity(proto, base_dir, left, goal.selection, rest, probes)
    if not sensitivity.signal > 0:
        raise ArgumentError(
            "{saving} goes by what the model's results lose, but none of them is float, finite and varies on {data}; "
            "give other {data} or a model that gives scores, or leave {saving} out"
        )
    found = layers_to_leave(opened.layers, ZeroSavings(opened.model, shapes), goal.saving, sensitivity.of)
    check_finite(sensitivity.evidence)
    return {**left, **found}
