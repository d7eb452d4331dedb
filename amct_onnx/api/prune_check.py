"""A pruned model is run before anybody gets it: on one feed, and where the batch is free on one sample of it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TypeAlias

from onnx import ModelProto, TypeProto

from amct_onnx.analyse.feeds import Feed
from amct_onnx.errors import AmctError, ModelError
from amct_onnx.graph import BuiltModel
from amct_onnx.graph.value_shapes import shaped_by_values
from amct_onnx.runtime import InferenceSession, fetch, input_specs, open_session, tensor_outputs

Shape: TypeAlias = tuple[int, ...]
Axes: TypeAlias = list[int] | None
"""Those of a result that are compared; None for all."""


def check_runs(built: BuiltModel, proto: ModelProto, base_dir: Path | None, feed: Feed) -> bool:
    """Run the pruned model where the float model runs.

    Args:
        built: the pruned model.
        proto: the float model.
        base_dir: folder of its external weights.
        feed: one feed.

    Returns:
        Whether it was run; False where the float model itself refuses the feed.

    Raises:
        ModelError: it does not run, or its results have other shapes.
    """
    source = open_session(proto, base_dir=base_dir)
    compared = _compared(proto, tensor_outputs(source))
    tried = [(one, _shapes(source, one)) for one in (feed, *_smaller(source, feed))]
    del source
    # Values may be drawn at random, and the float model itself refuse them.
    feeds = [one for one, shapes in tried if shapes is not None]
    wanted = [shapes for _, shapes in tried if shapes is not None]
    try:
        session = open_session(built)
        names = tensor_outputs(session)
        got = [[array.shape for array in fetch(session, names, one)] for one in feeds]
    except AmctError as error:
        raise ModelError(
            f"the pruned model does not run: {error}; skip the layers before that node, and report the model"
        ) from error
    if not all(_agree(*shapes, compared) for shapes in zip(wanted, got, strict=True)):
        raise ModelError(
            f"results of the pruned model have shapes {got}, not {wanted}; skip the last layers, and report the model"
        )
    return bool(feeds)


def _compared(proto: ModelProto, names: Sequence[str]) -> list[Axes]:
    """Axes of each result that pruning must leave as long as they are.

    All of them, except in results whose shape values decide, as the number of boxes found: of these, what the model
    declares to be fixed.
    """
    declared = {info.name: info.type.tensor_type for info in proto.graph.output}
    shaped = shaped_by_values(proto.graph)
    return [_fixed(declared[name]) if name in shaped else None for name in names]


def _fixed(declared: TypeProto.Tensor) -> list[int]:
    return [axis for axis, dim in enumerate(declared.shape.dim) if dim.HasField("dim_value")]


def _agree(wanted: Sequence[Shape], got: Sequence[Shape], compared: Sequence[Axes]) -> bool:
    """Whether the results of one run have the shapes that they should have."""
    for want, have, axes in zip(wanted, got, compared, strict=True):
        if axes is None and want != have:
            return False
        if any(want[axis : axis + 1] != have[axis : axis + 1] for axis in axes or ()):
            return False
    return True


def _smaller(session: InferenceSession, feed: Feed) -> list[Feed]:
    """The first sample alone, where every input has a free batch of more than one."""
    specs = input_specs(session)
    is_free = all(spec.shape and not isinstance(spec.shape[0], int) for spec in specs)
    if not is_free or any(len(feed[spec.name]) < 2 for spec in specs):
        return []
    return [{spec.name: feed[spec.name][:1] for spec in specs}]


def runs(proto: ModelProto, base_dir: Path | None, feed: Feed) -> bool:
    """Whether a model runs on a feed."""
    try:
        return _shapes(open_session(proto, base_dir=base_dir), feed) is not None
    except AmctError:
        return False


def _shapes(session: InferenceSession, feed: Feed) -> list[tuple[int, ...]] | None:
    """Shapes of the results; None when the model does not run on the feed."""
    try:
        return [array.shape for array in fetch(session, tensor_outputs(session), feed)]
    except AmctError:
        return None
