"""Normalizations: one scale and shift for each channel, and some whose statistics mix channels."""

from __future__ import annotations

from collections.abc import Mapping

from amct_onnx.graph.parts import Node
from amct_onnx.passes.pruning.axes import has_labels, labels_of
from amct_onnx.passes.pruning.walk import Rule, Walk


def batch_normalization(walk: Walk, node: Node) -> None:
    """Scale, shift, mean and variance of each channel."""
    layout = walk.layout(node.inputs[0])
    if layout is None or len(layout) < 2:
        walk.fix_inputs(node, "the shape of its input is not known")
        return
    labels = labels_of(layout[1], walk.labels)
    for index in range(1, 5):
        walk.slice(node, index, {0: labels})
    walk.read(node, labels)
    walk.set(node.outputs[0], layout)
    for tensor in node.outputs[1:]:
        # Statistics of a training model.
        walk.set(tensor, [layout[1]])


def instance_normalization(walk: Walk, node: Node) -> None:
    """Scale and shift of each channel; statistics over all axes behind it."""
    layout = walk.layout(node.inputs[0])
    if layout is None:
        walk.fix_inputs(node, "the shape of its input is not known")
        return
    labels = labels_of(layout[1], walk.labels)
    for index in (1, 2):
        walk.slice(node, index, {0: labels})
    walk.read(node, labels)
    for axis in layout[2:]:
        mixed = labels_of(axis, walk.labels)
        if mixed is not None:
            walk.flow.approximate[node.name] = mixed
    walk.set(node.outputs[0], layout)


def layer_normalization(walk: Walk, node: Node) -> None:
    """Scale and shift along the normalized axes; statistics over them, so channels that go change the others."""
    layout = walk.layout(node.inputs[0])
    if layout is None:
        walk.fix_inputs(node, "the shape of its input is not known")
        return
    begin = int(node.attrs.get("axis", -1)) % len(layout)
    for axis in range(begin, len(layout)):
        labels = labels_of(layout[axis], walk.labels)
        if labels is None:
            continue
        walk.flow.approximate[node.name] = labels
        walk.read(node, labels)
        for index in (1, 2):
            constant = walk.shape(node.inputs[index]) if index < len(node.inputs) else None
            own = axis - len(layout) + len(constant or ())
            if constant is not None and own >= 0 and constant[own] > 1:
                walk.slice(node, index, {own: labels})
    walk.set(node.outputs[0], layout)
    for tensor in node.outputs[1:]:
        walk.set(tensor, [axis if index < begin else () for index, axis in enumerate(layout)])


def group_normalization(walk: Walk, node: Node) -> None:
    """Blocks of channels share statistics: of each as many go."""
    layout = walk.layout(node.inputs[0])
    if layout is None:
        walk.fix_inputs(node, "the shape of its input is not known")
        return
    labels = labels_of(layout[1], walk.labels)
    groups = int(node.attrs["num_groups"])
    if labels is not None:
        walk.flow.approximate[node.name] = labels
        walk.balance(labels, groups)
        walk.read(node, labels)
        for index in (1, 2):
            shape = walk.shape(node.inputs[index])
            if shape is not None and shape[0] == labels.size:
                walk.slice(node, index, {0: labels})
    walk.set(node.outputs[0], layout)


def neighbours(walk: Walk, node: Node) -> None:
    """Statistics over neighbouring channels: which they are would change."""
    layout = walk.layout(node.inputs[0])
    if layout is None or any(map(has_labels, layout)):
        walk.fix_inputs(node, "it mixes neighbouring channels")


def norm(walk: Walk, node: Node) -> None:
    """LpNormalization: along one axis."""
    layout = walk.layout(node.inputs[0])
    if layout is None:
        walk.fix_inputs(node, "the shape of its input is not known")
        return
    labels = labels_of(layout[int(node.attrs.get("axis", -1))], walk.labels)
    if labels is not None:
        walk.flow.approximate[node.name] = labels
    walk.set(node.outputs[0], layout)


NORMALIZATION: Mapping[str, Rule] = {
    "BatchNormalization": batch_normalization,
    "InstanceNormalization": instance_normalization,
    "LayerNormalization": layer_normalization,
    "RMSNormalization": layer_normalization,
    "GroupNormalization": group_normalization,
    "LRN": neighbours,
    "LpNormalization": norm,
}
"""Rules by operator."""
