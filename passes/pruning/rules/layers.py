"""Layers: they make channels of their own, and hold weights for those they read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from amct_onnx.graph.op_table import known_constant, resolve_constant
from amct_onnx.graph.parts import Node
from amct_onnx.passes.pruning.adjust import Attribute, GroupedWeight
from amct_onnx.passes.pruning.axes import Axis, has_labels, labelled, labels_of, plain_axis, size_of
from amct_onnx.passes.pruning.labels import FIXED, LabelArray
from amct_onnx.passes.pruning.walk import Rule, Walk


def convolution(walk: Walk, node: Node) -> None:
    """Conv: weight [outputs, inputs per group, kernel]."""
    weight = resolve_constant(node.inputs[1])
    if weight is None:
        walk.fix_inputs(node, "its weight is computed")
        return
    outputs, per_group = int(weight.shape[0]), int(weight.shape[1])
    groups = int(node.attrs.get("group", 1))
    read = walk.axis_labels(node.inputs[0], 1)
    made: LabelArray | None
    if groups == 1:
        made = walk.produce(node, outputs)
        walk.slice(node, 1, {0: made, 1: read})
    elif per_group == 1:
        made = _depthwise(walk, node, read, outputs // groups)
    else:
        made = _grouped(walk, node, read, outputs, groups)
    walk.read(node, read, groups)
    walk.slice(node, 2, {0: made})
    _set_channels(walk, node, made)


def transposed_convolution(walk: Walk, node: Node) -> None:
    """ConvTranspose: weight [inputs, outputs per group, kernel]."""
    weight = resolve_constant(node.inputs[1])
    if weight is None:
        walk.fix_inputs(node, "its weight is computed")
        return
    groups = int(node.attrs.get("group", 1))
    read = walk.axis_labels(node.inputs[0], 1)
    made: LabelArray | None
    if groups == 1:
        made = walk.produce(node, int(weight.shape[1]))
        walk.slice(node, 1, {0: read, 1: made})
    elif groups == int(weight.shape[0]):
        made = _depthwise(walk, node, read, int(weight.shape[1]), transposed=True)
    else:
        made = _grouped(walk, node, read, int(weight.shape[1]) * groups, groups, transposed=True)
    walk.read(node, read, groups)
    walk.slice(node, 2, {0: made})
    _set_channels(walk, node, made)


def _depthwise(
    walk: Walk, node: Node, read: LabelArray | None, multiplier: int, *, transposed: bool = False
) -> LabelArray | None:
    """Every input channel makes results of its own, which go with it."""
    if read is None:
        return None
    made = np.repeat(read, multiplier)
    walk.slice(node, 1, {0: read if transposed else made})
    walk.adjust(Attribute(node, "group", (read,)))
    return made


def _grouped(
    walk: Walk, node: Node, read: LabelArray | None, outputs: int, groups: int, *, transposed: bool = False
) -> LabelArray:
    """Inputs of a block make the results of a block: of each block as many go."""
    made = walk.produce(node, outputs, groups)
    if read is None:
        shape = known_constant(node.inputs[1]).shape
        inner = int(shape[0]) if transposed else int(shape[1]) * groups
        read = np.full(inner, FIXED, np.int64)
    else:
        walk.balance(read, groups)
    blocks = read.reshape(groups, -1), made.reshape(groups, -1)
    walk.adjust(GroupedWeight(node, *(blocks if transposed else blocks[::-1])))
    return made


def _set_channels(walk: Walk, node: Node, made: LabelArray | None) -> None:
    shape = walk.shape(node.outputs[0])
    layout = walk.layout(node.inputs[0])
    if layout is not None and shape is not None and (made is not None or any(map(has_labels, layout))):
        behind = [_passed(walk, node, axis, size) for axis, size in enumerate(shape[2:])]
        channels = plain_axis(shape[1]) if made is None else labelled(made)
        walk.set(node.outputs[0], [layout[0], channels, *behind])
    elif made is not None:
        walk.labels.fix(made, f"the shape of '{node.outputs[0].name}' is not known")
    else:
        walk.fix_inputs(node, "a shape is not known")


def _passed(walk: Walk, node: Node, place: int, size: int) -> Axis:
    """An axis along which a kernel slides: channels pass through one that takes each position by itself."""
    layout, weight = walk.layout(node.inputs[0]), walk.shape(node.inputs[1])
    axis = plain_axis(size) if layout is None else layout[2 + place]
    if not has_labels(axis):
        return plain_axis(size)
    is_pointwise = weight is not None and weight[2 + place] == 1 and size_of(axis) == size
    if is_pointwise and int((node.attrs.get("strides") or [1] * 9)[place]) == 1:
        return axis
    labels = labels_of(axis, walk.labels)
    if labels is not None:
        walk.labels.fix(labels, f"{node.op} '{node.name}': its kernel slides along them")
    return plain_axis(size)


def gemm(walk: Walk, node: Node) -> None:
    """Gemm: rows pass, columns of the first input meet the weight."""
    first, second = node.inputs[:2]
    layout = walk.layout(first)
    if resolve_constant(second) is None or layout is None:
        walk.fix_inputs(node, "its weight is computed, or a shape is not known")
        return
    rows, columns = (1, 0) if node.attrs.get("transA", 0) else (0, 1)
    inputs, outputs = (1, 0) if node.attrs.get("transB", 0) else (0, 1)
    read = labels_of(layout[columns], walk.labels)
    weight = resolve_constant(second)
    made = walk.produce(node, int(weight.shape[outputs]) if weight is not None else 0)
    walk.slice(node, 1, {inputs: read, outputs: made})
    walk.read(node, read)
    bias = resolve_constant(node.inputs[2]) if len(node.inputs) > 2 else None
    if bias is not None and bias.shape and bias.shape[-1] > 1:
        walk.slice(node, 2, {len(bias.shape) - 1: made})
    elif len(node.inputs) > 2 and bias is None and not node.inputs[2].is_empty():
        walk.labels.fix(made, f"Gemm '{node.name}': its C is computed")
        walk.fix(node.inputs[2], f"Gemm '{node.name}': its C is computed")
    walk.set(node.outputs[0], [layout[rows], labelled(made)])


def product(walk: Walk, node: Node) -> None:
    """MatMul: with a constant it is a layer, else two tensors whose inner axes meet."""
    first, second = node.inputs
    layouts = [walk.layout(tensor) for tensor in (first, second)]
    one, other = layouts
    if one is None or other is None or len(one) < 1 or len(other) < 1:
        walk.fix_inputs(node, "a shape is not known")
        return
    constants = [resolve_constant(tensor) for tensor in (first, second)]
    if constants[1] is not None and len(constants[1].shape) == 2:
        read = labels_of(one[-1], walk.labels)
        made = walk.produce(node, int(constants[1].shape[1]))
        walk.slice(node, 1, {0: read, 1: made})
        walk.read(node, read)
        walk.set(node.outputs[0], [*one[:-1], labelled(made)])
    elif constants[0] is not None and len(constants[0].shape) == 2 and len(other) >= 2:
        read = labels_of(other[-2], walk.labels)
        made = walk.produce(node, int(constants[0].shape[0]))
        walk.slice(node, 0, {1: read, 0: made})
        walk.read(node, read)
        walk.set(node.outputs[0], [*other[:-2], labelled(made), other[-1]])
    elif any(constant is not None for constant in constants) or min(len(one), len(other)) < 2:
        walk.fix_inputs(node, "a product with a constant that is no matrix")
    else:
        _of_computed(walk, node, one, other)


def _of_computed(walk: Walk, node: Node, one: Sequence[Axis], other: Sequence[Axis]) -> None:
    names = [f"'{tensor.name}'" for tensor in node.inputs]
    walk.read(node, labels_of(walk.unite_axes(node, [(one[-1], names[0]), (other[-2], names[1])]), walk.labels))
    rank = max(len(one), len(other))
    batch: list[Axis] = []
    for axis in range(-rank, -2):
        there = [
            (layout[axis], name)
            for layout, name in zip((one, other), names, strict=True)
            if len(layout) >= -axis and layout[axis]
        ]
        batch.append(walk.unite_axes(node, there) if there else ())
    walk.set(node.outputs[0], [*batch, one[-2], other[-1]])


LAYERS: Mapping[str, Rule] = {
    "Conv": convolution,
    "ConvTranspose": transposed_convolution,
    "Gemm": gemm,
    "MatMul": product,
}
"""Rules by operator."""
