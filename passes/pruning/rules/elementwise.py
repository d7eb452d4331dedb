"""Operators that work on each value by itself, or on values at equal positions."""

from __future__ import annotations

from collections.abc import Mapping

from amct_onnx.graph.op_table import resolve_constant
from amct_onnx.graph.parts import Node, Tensor
from amct_onnx.passes.pruning.axes import Axis, Layout, has_labels, labels_of, size_of
from amct_onnx.passes.pruning.walk import Rule, Walk


def unary(walk: Walk, node: Node) -> None:
    """The result has the axes of the first input."""
    layout = walk.layout(node.inputs[0])
    if layout is not None:
        for tensor in node.outputs:
            walk.set(tensor, layout)


def broadcast(walk: Walk, node: Node) -> None:
    """Axes line up from the last; those of more than one position meet, those of one go along."""
    known = [(tensor, walk.layout(tensor)) for tensor in node.inputs if not tensor.is_empty()]
    operands = [(tensor, layout) for tensor, layout in known if layout is not None]
    if not any(walk.has_labels(tensor) for tensor, _ in operands):
        return
    if len(operands) < len(known):
        walk.fix_inputs(node, "the shape of an operand is not known")
        return
    rank = max(len(layout) for _, layout in operands)
    result = [_met(walk, node, operands, axis - rank) for axis in range(rank)]
    for axis, found in enumerate(result):
        if has_labels(found):
            _slice_constants(walk, node, operands, axis - rank, found)
    for tensor in node.outputs:
        walk.set(tensor, result)
    _note(walk, node, result)


def _met(walk: Walk, node: Node, operands: list[tuple[Tensor, Layout]], axis: int) -> Axis:
    """The axis of the result, counted from behind: what all operands say of it that have more than one position."""
    there = [
        (tensor, layout[axis]) for tensor, layout in operands if len(layout) >= -axis and size_of(layout[axis]) > 1
    ]
    # Constants follow; everything else must agree.
    computed = [(found, f"'{tensor.name}'") for tensor, found in there if resolve_constant(tensor) is None]
    if computed:
        return walk.unite_axes(node, computed)
    return there[0][1] if there else ()


def _slice_constants(walk: Walk, node: Node, operands: list[tuple[Tensor, Layout]], axis: int, found: Axis) -> None:
    labels = labels_of(found, walk.labels)
    for index, tensor in enumerate(node.inputs):
        constant = resolve_constant(tensor)
        if constant is not None and len(constant.shape) >= -axis and constant.shape[axis] > 1:
            walk.slice(node, index, {len(constant.shape) + axis: labels})


def _note(walk: Walk, node: Node, result: list[Axis]) -> None:
    """A prune record names sums, and what applies a constant to each channel."""
    if node.op in _NAMED:
        labels = [labels_of(axis, walk.labels) for axis in result if has_labels(axis)]
        walk.read(node, labels[0] if labels else None)


_NAMED = frozenset({"Add", "PRelu"})
_UNARY = """
    Abs Acos Acosh Asin Asinh Atan Atanh Cast Ceil Celu Clip Cos Cosh Dropout Elu Erf Exp Floor Gelu HardSigmoid
    HardSwish Identity IsInf IsNaN LeakyRelu Log Mish Neg Not Reciprocal Relu Round Selu Shrink Sigmoid Sign Sin Sinh
    Softplus Softsign Sqrt Swish Tan Tanh ThresholdedRelu
"""
_BROADCAST = """
    Add And Div Equal Greater GreaterOrEqual Less LessOrEqual Max Mean Min Mod Mul Or PRelu Pow Sub Sum Where Xor
"""

ELEMENTWISE: Mapping[str, Rule] = {
    **dict.fromkeys(_UNARY.split(), unary),
    **dict.fromkeys(_BROADCAST.split(), broadcast),
}
"""Rules by operator."""
