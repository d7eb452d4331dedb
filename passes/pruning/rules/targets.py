"""Shapes that nodes are given as an input: Reshape, Expand, Resize."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from amct_onnx.graph.parts import Node
from amct_onnx.passes.pruning.adjust import Entries, Sizes
from amct_onnx.passes.pruning.axes import Axis, labelled, labels_of, plain_axis
from amct_onnx.passes.pruning.labels import LabelArray
from amct_onnx.passes.pruning.sizes import Size
from amct_onnx.passes.pruning.walk import Walk


def shrink_sizes(walk: Walk, node: Node, index: int, axes: Mapping[int, Axis]) -> None:
    """Note that a shape given as input shrinks along these axes.

    Of a constant, entries above 0 do (0 and -1 follow by themselves). Of a computed one those that are the length of
    the same axis follow by themselves, others are put in; what else counts channels is put in, too, as it was.
    """
    labels = {axis: found for axis, layout in axes.items() if (found := labels_of(layout, walk.labels)) is not None}
    values = walk.values(node.inputs[index])
    if values is not None:
        flat = values.reshape(-1)
        entries = {axis: found for axis, found in labels.items() if axis < flat.size and flat[axis] > 0}
        if entries:
            walk.adjust(Sizes(node, index, entries))
        return
    sizes = walk.sizes(node.inputs[index])
    if sizes is None:
        for found in labels.values():
            walk.labels.fix(found, f"{node.op} '{node.name}': its target shape cannot be followed")
        return
    if sizes.values() is not None and sizes.counted:
        walk.freeze(node, index)
        shrink_sizes(walk, node, index, axes)
        return
    given: dict[int, LabelArray | int] = {}
    for axis, size in enumerate(sizes.entries.reshape(-1)):
        found = labels.get(axis)
        if found is None:
            _keep(walk, node, size, axis, given)
        elif not _follows(walk, size, found):
            given[axis] = found
            if size.value is None:
                walk.labels.fix(found, f"{node.op} '{node.name}': its new shape mixes channels with free sizes")
    if given:
        counted = [labels for axis in given for labels in sizes.entries.reshape(-1)[axis].counted]
        walk.adjust(Entries(node, index, sizes.entries.size, given, counted))


def filled_axis(walk: Walk, node: Node, index: int, axis: int, size: int) -> Axis:
    """An axis along which one value is repeated as often as a given shape says.

    That is as many times as there are channels; or a number that is always the same, and then the positions follow the
    channels that they meet later on, as those of a constant do.
    """
    sizes = walk.sizes(node.inputs[index])
    entries = [] if sizes is None else list(sizes.entries.reshape(-1))
    entry = entries[axis] if axis < len(entries) else None
    if entry is None or size < 2:
        return plain_axis(size)
    if entry.channels is not None:
        return labelled(entry.channels) if entry.channels.size == size else plain_axis(size)
    return labelled(walk.labels.fresh(size)) if entry.value == size and not entry.counted else plain_axis(size)


def keep_sizes(walk: Walk, node: Node) -> None:
    """Let no size change that a node without channels is given."""
    for index in range(len(node.inputs)):
        if not walk.has_labels(node.inputs[index]):
            shrink_sizes(walk, node, index, {})


def _follows(walk: Walk, size: Size, labels: LabelArray) -> bool:
    """Whether an entry is right by itself, whichever channels go."""
    if size.channels is not None:
        own = size.channels
        return own.size == labels.size and bool(np.array_equal(walk.labels.find(own), walk.labels.find(labels)))
    return not size.counted and size.value in (0, -1)


def _keep(walk: Walk, node: Node, size: Size, axis: int, given: dict[int, LabelArray | int]) -> None:
    """An entry for an axis without channels must not change with them."""
    if not size.counted:
        return
    if size.value is not None:
        given[axis] = int(size.value)
        return
    for labels in size.counted:
        walk.labels.fix(labels, f"{node.op} '{node.name}': a size of its own is computed from their number")
