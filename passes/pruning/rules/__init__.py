"""What every operator does with channels; one module per family."""

from __future__ import annotations

from collections.abc import Mapping

from amct_onnx.passes.pruning.rules.branches import BRANCHES
from amct_onnx.passes.pruning.rules.einsum import einsum
from amct_onnx.passes.pruning.rules.elementwise import ELEMENTWISE
from amct_onnx.passes.pruning.rules.layers import LAYERS
from amct_onnx.passes.pruning.rules.loops import LOOPS
from amct_onnx.passes.pruning.rules.moves import MOVES
from amct_onnx.passes.pruning.rules.normalization import NORMALIZATION
from amct_onnx.passes.pruning.rules.recurrent import RECURRENT
from amct_onnx.passes.pruning.rules.reductions import REDUCTIONS
from amct_onnx.passes.pruning.walk import Rule

_RULES: Mapping[str, Rule] = {
    **BRANCHES,
    **ELEMENTWISE,
    **LAYERS,
    **LOOPS,
    **MOVES,
    **NORMALIZATION,
    **RECURRENT,
    **REDUCTIONS,
    "Einsum": einsum,
}
"""Operator type -> rule; a node of any other type lets all channels that reach it stay."""

_SCAN_WITHOUT_BATCH = 9
"""Operator set from which on Scan has no batch axis and no lengths."""


def rules_of(opset: int) -> Mapping[str, Rule]:
    """The rules for one version of the operators."""
    return _RULES if opset >= _SCAN_WITHOUT_BATCH else {name: rule for name, rule in _RULES.items() if name != "Scan"}


__all__ = ["rules_of"]
