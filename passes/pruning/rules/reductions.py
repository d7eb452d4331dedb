"""Operators that make one value of many: pooling, reductions, softmax."""

from __future__ import annotations

from collections.abc import Mapping

from amct_onnx.graph.parts import Node, Tensor
from amct_onnx.passes.pruning.axes import Axis, has_labels, labels_of, plain_axis
from amct_onnx.passes.pruning.walk import Rule, Walk


def pooling(walk: Walk, node: Node) -> None:
    """Batch and channels pass, the axes behind them get other sizes."""
    layout, shape = walk.layout(node.inputs[0]), walk.shape(node.outputs[0])
    if layout is None or shape is None:
        walk.fix_inputs(node, "a shape is not known")
        return
    for axis in layout[2:]:
        labels = labels_of(axis, walk.labels)
        if labels is not None:
            walk.labels.fix(labels, f"{node.op} '{node.name}': it pools along them")
    if node.outputs[1:] and node.outputs[1].outputs:
        walk.fix_inputs(node, "its indices, which are read, count channels")
    for tensor in node.outputs:
        walk.set(tensor, [*layout[:2], *map(plain_axis, shape[2:])])


def sampling(walk: Walk, node: Node) -> None:
    """Values are read at computed places of an image, channel by channel; regions take the place of the batch."""
    layout, shape = walk.layout(node.inputs[0]), walk.shape(node.outputs[0])
    if layout is None or shape is None:
        walk.fix_inputs(node, "a shape is not known")
        return
    for tensor in node.inputs[1:]:
        walk.fix(tensor, f"{node.op} '{node.name}': it computes places from them")
    for axis in (layout[0], *layout[2:]):
        labels = labels_of(axis, walk.labels)
        if labels is not None:
            walk.labels.fix(labels, f"{node.op} '{node.name}': it reads places along them")
    walk.set(node.outputs[0], [plain_axis(shape[0]), layout[1], *map(plain_axis, shape[2:])])


def reduction(walk: Walk, node: Node) -> None:
    """Reduced axes vanish, or keep one position; channels among them change the result for all others."""
    layout = walk.layout(node.inputs[0])
    if layout is None:
        walk.fix_inputs(node, "the shape of its input is not known")
        return
    axes = reduced_axes(walk, node, len(layout))
    if axes is None:
        walk.fix_inputs(node, "its axes are computed")
        return
    for axis in axes:
        labels = labels_of(layout[axis], walk.labels)
        if labels is not None:
            walk.flow.approximate[node.name] = labels
    kept: Axis = ()
    keeps = bool(node.attrs.get("keepdims", 1))
    walk.set(
        node.outputs[0],
        [kept if axis in axes else found for axis, found in enumerate(layout) if keeps or axis not in axes],
    )


def reduced_axes(walk: Walk, node: Node, rank: int) -> set[int] | None:
    """Axes that a reduction or squeeze names, by attribute or input; None when they are computed."""
    given = node.attrs.get("axes")
    if given is None and len(node.inputs) > 1 and not node.inputs[1].is_empty():
        values = walk.values(node.inputs[1])
        if values is None:
            return None
        given = values.reshape(-1).tolist()
    if not given:
        return set() if node.attrs.get("noop_with_empty_axes", 0) else set(range(rank))
    return {int(axis) % rank for axis in given}


_ALONG_ONE_AXIS = 13
"""Before this operator set a Softmax works along all axes from the one it names, by default the second."""
_FLATTENING = frozenset({"Softmax", "LogSoftmax", "Hardmax"})


def along_axis(default: int) -> Rule:
    """Operators that compare or add up along one axis, which must stay as it is."""

    def rule(walk: Walk, node: Node) -> None:
        layout, shape = walk.layout(node.inputs[0]), walk.shape(node.outputs[0])
        if layout is None or shape is None:
            walk.fix_inputs(node, "a shape is not known")
            return
        is_old = walk.model.opset < _ALONG_ONE_AXIS and node.op in _FLATTENING
        axis = int(node.attrs.get("axis", 1 if is_old else default)) % len(layout)
        if node.op == "CumSum":
            values = walk.values(node.inputs[1])
            axis = axis if values is None else int(values.reshape(-1)[0]) % len(layout)
        for affected in range(axis, len(layout)) if is_old else (axis,):
            labels = labels_of(layout[affected], walk.labels)
            if labels is not None:
                walk.labels.fix(labels, f"{node.op} '{node.name}': it works along them")
        for tensor in node.outputs:
            _pass_others(walk, tensor, layout, axis)

    return rule


def _pass_others(walk: Walk, tensor: Tensor, layout: tuple[Axis, ...], axis: int) -> None:
    shape = walk.shape(tensor)
    if shape is None:
        return
    others = [found for index, found in enumerate(layout) if index != axis]
    if len(shape) == len(layout):
        others.insert(axis, plain_axis(shape[axis]))
    if any(map(has_labels, others)):
        walk.set(tensor, others)


_REDUCTIONS = """
    ReduceL1 ReduceL2 ReduceLogSum ReduceLogSumExp ReduceMax ReduceMean ReduceMin ReduceProd ReduceSum ReduceSumSquare
"""
_POOLING = "AveragePool GlobalAveragePool GlobalLpPool GlobalMaxPool LpPool MaxPool"

REDUCTIONS: Mapping[str, Rule] = {
    **dict.fromkeys(_POOLING.split(), pooling),
    **dict.fromkeys(_REDUCTIONS.split(), reduction),
    **dict.fromkeys(("RoiAlign", "MaxRoiPool", "GridSample"), sampling),
    "Softmax": along_axis(-1),
    "LogSoftmax": along_axis(-1),
    "Hardmax": along_axis(-1),
    "ArgMax": along_axis(0),
    "ArgMin": along_axis(0),
    "TopK": along_axis(-1),
    "CumSum": along_axis(0),
}
"""Rules by operator."""
