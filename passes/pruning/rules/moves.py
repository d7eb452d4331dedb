"""Operators that move values about: channels keep their labels, wherever they go."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from amct_onnx.graph.parts import Node
from amct_onnx.passes.pruning.adjust import Indices, Range, SplitSizes
from amct_onnx.passes.pruning.axes import (
    Axis,
    Factor,
    Layout,
    has_labels,
    labelled,
    labels_of,
    plain_axis,
    regroup,
    size_of,
)
from amct_onnx.passes.pruning.labels import FIXED, LabelArray
from amct_onnx.passes.pruning.rules.reductions import reduced_axes
from amct_onnx.passes.pruning.rules.targets import filled_axis, keep_sizes, shrink_sizes
from amct_onnx.passes.pruning.walk import Rule, Walk


def transpose(walk: Walk, node: Node) -> None:
    """Axes change places."""
    layout = walk.layout(node.inputs[0])
    if layout is not None:
        order = node.attrs.get("perm") or list(reversed(range(len(layout))))
        walk.set(node.outputs[0], [layout[axis] for axis in order])


def reshape(walk: Walk, node: Node) -> None:
    """Factors are regrouped; a border through a factor of channels ties them."""
    tensor = node.inputs[0]
    if not walk.has_labels(tensor):
        keep_sizes(walk, node)
        return
    layout, shape = walk.layout(tensor), walk.shape(node.outputs[0])
    made = None if layout is None or shape is None else regroup(layout, shape, walk.labels)
    if made is None:
        walk.fix_inputs(node, "its new shape cannot be followed")
        return
    walk.set(node.outputs[0], made)
    if node.op == "Reshape":
        _shrink_target(walk, node, made)


def _shrink_target(walk: Walk, node: Node, made: Sequence[Axis]) -> None:
    """Sizes of labelled axes in the target shape, whether it is a constant or put together from some."""
    if len(node.inputs) < 2:
        walk.fix(node.inputs[0], f"Reshape '{node.name}': its shape is an attribute")
        return
    shrink_sizes(walk, node, 1, {axis: found for axis, found in enumerate(made) if has_labels(found)})


def unsqueeze(walk: Walk, node: Node) -> None:
    """New axes of one position."""
    layout = walk.layout(node.inputs[0])
    shape = walk.shape(node.outputs[0])
    if layout is None or shape is None:
        walk.fix_inputs(node, "a shape is not known")
        return
    axes = reduced_axes(walk, node, len(shape))
    if axes is None:
        walk.fix_inputs(node, "its axes are computed")
        return
    rest = iter(layout)
    walk.set(node.outputs[0], [() if axis in axes else next(rest) for axis in range(len(shape))])


def squeeze(walk: Walk, node: Node) -> None:
    """Axes of one position vanish."""
    layout = walk.layout(node.inputs[0])
    if layout is None:
        walk.fix_inputs(node, "the shape of its input is not known")
        return
    named = "axes" in node.attrs or (len(node.inputs) > 1 and not node.inputs[1].is_empty())
    axes = reduced_axes(walk, node, len(layout)) if named else None
    if axes is None:
        axes = {axis for axis, found in enumerate(layout) if size_of(found) == 1}
        _keep_two(walk, node, layout)
    walk.set(node.outputs[0], [found for axis, found in enumerate(layout) if axis not in axes])


def _keep_two(walk: Walk, node: Node, layout: Layout) -> None:
    """A Squeeze that names no axes would take one of a single channel along."""
    for axis in layout:
        labels = labels_of(axis, walk.labels)
        for half in [] if labels is None else np.array_split(labels, 2):
            walk.keep_one(node, half)


def concat(walk: Walk, node: Node) -> None:
    """Positions stand behind one another along one axis, and meet along the others."""
    if not any(map(walk.has_labels, node.inputs)):
        return
    along = int(node.attrs["axis"])
    layouts = [walk.follow_constant(node, index, leave=along) or walk.layout(t) for index, t in enumerate(node.inputs)]
    known = [layout for layout in layouts if layout is not None]
    if len(known) < len(layouts):
        walk.fix_inputs(node, "the shape of an operand is not known")
        return
    rank = len(known[0])
    along %= rank
    result: list[Axis] = []
    for axis in range(rank):
        parts = [layout[axis] for layout in known]
        if axis == along:
            result.append(_behind(walk, node, parts))
        else:
            names = [f"'{tensor.name}'" for tensor in node.inputs]
            result.append(walk.unite_axes(node, list(zip(parts, names, strict=True))))
    walk.set(node.outputs[0], result)


def _behind(walk: Walk, node: Node, parts: Sequence[Axis]) -> Axis:
    if not any(map(has_labels, parts)):
        return plain_axis(sum(map(size_of, parts)))
    found = []
    for part in parts:
        labels = labels_of(part, walk.labels)
        found.append(np.full(size_of(part), FIXED) if labels is None else labels)
    whole = np.concatenate(found)
    walk.read(node, whole)
    return labelled(whole)


def split(walk: Walk, node: Node) -> None:
    """Positions are dealt out along one axis."""
    layout = walk.layout(node.inputs[0])
    shapes = [walk.shape(tensor) for tensor in node.outputs]
    if layout is None or any(shape is None for shape in shapes):
        walk.fix_inputs(node, "a shape is not known")
        return
    along = int(node.attrs.get("axis", 0)) % len(layout)
    labels = labels_of(layout[along], walk.labels)
    begin, parts = 0, []
    for tensor, shape in zip(node.outputs, shapes, strict=True):
        size = shape[along] if shape is not None else 0
        part = None if labels is None else labels[begin : begin + size]
        axis = plain_axis(size) if part is None else labelled(part)
        walk.set(tensor, [axis if index == along else found for index, found in enumerate(layout)])
        parts.append(part)
        if part is not None:
            walk.keep_one(node, part)
        begin += size
    if labels is None:
        return
    if len(node.inputs) > 1 and not node.inputs[1].is_empty() and walk.values(node.inputs[1]) is None:
        walk.labels.fix(labels, f"Split '{node.name}': its sizes are computed")
        return
    walk.adjust(SplitSizes(node, tuple(part for part in parts if part is not None)))


def slice_(walk: Walk, node: Node) -> None:
    """A range along some axes."""
    keep_sizes(walk, node)
    layout, shape = walk.layout(node.inputs[0]), walk.shape(node.outputs[0])
    if layout is None or shape is None:
        walk.fix_inputs(node, "a shape is not known")
        return
    ranges, sliced = _ranges(walk, node, len(layout)), _sliced_axes(walk, node, len(layout))
    result = list(layout)
    for axis in range(len(layout)):
        size = size_of(layout[axis])
        if axis not in (sliced if ranges is None else ranges):
            continue
        labels = labels_of(layout[axis], walk.labels)
        if ranges is None:
            if labels is not None:
                walk.labels.fix(labels, f"Slice '{node.name}': its bounds are computed")
            result[axis] = plain_axis(shape[axis])
            continue
        entry, begin, end, step = ranges[axis]
        positions = np.arange(size)[slice(begin, end, step)] if step > 0 else np.arange(0)
        if labels is None:
            result[axis] = plain_axis(shape[axis])
        elif step < 0 or positions.size == 0 or len(node.inputs) < 3:
            walk.labels.fix(labels, f"Slice '{node.name}': its steps cannot be followed")
            result[axis] = plain_axis(shape[axis])
        elif step > 1 and begin in range(step) and end >= size and size % step == 0:
            # What is left of every second one is every second one where neighbours go together.
            grid = labels.reshape(-1, step)
            for column in grid.T[1:]:
                walk.labels.unite(grid[:, 0], column)
            result[axis] = labelled(labels[positions])
        elif positions.size == size:
            if end < 0:
                walk.labels.fix(labels, f"Slice '{node.name}': its end counts from the end")
        else:
            result[axis] = labelled(labels[positions])
            walk.adjust(Range(node, axis, labels, positions, entry))
            walk.keep_one(node, labels[positions])
            if step > 1:
                walk.labels.fix(labels, f"Slice '{node.name}': it leaves out steps")
    walk.set(node.outputs[0], result)


def _ranges(walk: Walk, node: Node, rank: int) -> dict[int, tuple[int, int, int, int]] | None:
    """Axis -> its place among the bounds, begin, end and step; None when they are computed."""
    if len(node.inputs) < 3:
        begins, ends = node.attrs.get("starts"), node.attrs.get("ends")
        axes, steps = node.attrs.get("axes"), None
    else:
        given = [_optional(walk, node, index) for index in (1, 2, 3, 4)]
        if any(values is None and _is_there(node, index + 1) for index, values in enumerate(given)):
            return None
        begins, ends, axes, steps = (None if values is None else values.reshape(-1).tolist() for values in given)
    if begins is None or ends is None:
        return None
    axes = axes if axes is not None else range(len(begins))
    steps = steps if steps is not None else [1] * len(begins)
    rows = zip(axes, begins, ends, steps, strict=True)
    return {int(axis) % rank: (entry, int(b), int(e), int(s)) for entry, (axis, b, e, s) in enumerate(rows)}


def _sliced_axes(walk: Walk, node: Node, rank: int) -> set[int]:
    """Axes that may be cut; all of them where that is computed, too."""
    given = node.attrs.get("axes") if len(node.inputs) < 3 else _optional(walk, node, 3)
    return set(range(rank)) if given is None else {int(axis) % rank for axis in given}


def _is_there(node: Node, index: int) -> bool:
    return index < len(node.inputs) and not node.inputs[index].is_empty()


def _optional(walk: Walk, node: Node, index: int) -> NDArray[np.int64] | None:
    return walk.values(node.inputs[index]) if _is_there(node, index) else None


def gather(walk: Walk, node: Node) -> None:
    """Positions along one axis, by constants; computed ones keep the axis as it is."""
    data, indices = node.inputs
    layout, places = walk.layout(data), walk.shape(indices)
    shape = walk.shape(node.outputs[0])
    if layout is None or (places is None and shape is None):
        walk.fix_inputs(node, "a shape is not known")
        return
    along = int(node.attrs.get("axis", 0)) % len(layout)
    if places is None and shape is not None:
        places = shape[along : along + len(shape) - len(layout) + 1]
    layout = walk.follow_constant(node, 0, leave=along) or layout
    labels = labels_of(layout[along], walk.labels)
    inner = walk.layout(indices) or tuple(map(plain_axis, places or ()))
    if labels is not None:
        inner = _gathered(walk, node, labels, places or ())
    walk.set(node.outputs[0], [*layout[:along], *inner, *layout[along + 1 :]])


def _gathered(walk: Walk, node: Node, labels: LabelArray, places: Sequence[int]) -> Layout:
    values = walk.values(node.inputs[1])
    if values is None:
        walk.labels.fix(labels, f"Gather '{node.name}': its positions are computed")
        return tuple(map(plain_axis, places))
    if len(places) != 1:
        # One of the channels, or a table of them: these must be there.
        walk.labels.fix(labels[values.reshape(-1)], f"Gather '{node.name}': it reads this very channel")
        walk.adjust(Indices(node, 1, labels))
        return tuple(map(plain_axis, places))
    walk.adjust(Indices(node, 1, labels))
    if 0 < values.size < labels.size:
        walk.keep_one(node, labels[values])
    return (labelled(labels[values]),)


def pad(walk: Walk, node: Node) -> None:
    """Positions are added at both ends; those are nobody's channels."""
    layout, shape = walk.layout(node.inputs[0]), walk.shape(node.outputs[0])
    if layout is None or shape is None:
        walk.fix_inputs(node, "a shape is not known")
        return
    pads = node.attrs.get("pads") if len(node.inputs) < 2 else walk.values(node.inputs[1])
    result: list[Axis] = []
    for axis, found in enumerate(layout):
        labels = labels_of(found, walk.labels) if size_of(found) != shape[axis] else None
        if size_of(found) == shape[axis]:
            result.append(found)
        elif labels is None:
            result.append(plain_axis(shape[axis]))
        elif pads is None or not _pads_whole(node, pads, len(layout)):
            walk.labels.fix(labels, f"Pad '{node.name}': it cannot be followed")
            result.append(plain_axis(shape[axis]))
        else:
            before, behind = int(pads[axis]), int(pads[axis + len(layout)])
            result.append(labelled(np.concatenate([np.full(before, FIXED), labels, np.full(behind, FIXED)])))
    walk.set(node.outputs[0], result)


def _pads_whole(node: Node, pads: Any, rank: int) -> bool:
    """Whether a constant is put at both ends of all axes, and nothing cut off."""
    return len(pads) == 2 * rank and min(pads) >= 0 and node.attrs.get("mode", "constant") == "constant"


def resize(walk: Walk, node: Node) -> None:
    """Axes of channels keep their size; what is given as sizes shrinks with them."""
    layout, shape = walk.layout(node.inputs[0]), walk.shape(node.outputs[0])
    if layout is None or shape is None:
        walk.fix_inputs(node, "a shape is not known")
        return
    result: list[Axis] = []
    for axis, found in enumerate(layout):
        if has_labels(found) and size_of(found) != shape[axis]:
            walk.fix(node.inputs[0], f"{node.op} '{node.name}': it stretches channels")
        result.append(found if size_of(found) == shape[axis] else plain_axis(shape[axis]))
    walk.set(node.outputs[0], result)
    if _is_there(node, 3):
        named = node.attrs.get("axes") or list(range(len(layout)))
        entries = {entry: result[axis % len(layout)] for entry, axis in enumerate(named)}
        shrink_sizes(walk, node, 3, {entry: axis for entry, axis in entries.items() if has_labels(axis)})


def expand(walk: Walk, node: Node) -> None:
    """Axes of one position are repeated; others stay."""
    shape = walk.shape(node.outputs[0])
    layout = walk.follow_constant(node, 0) or walk.layout(node.inputs[0])
    if layout is None or shape is None:
        walk.fix_inputs(node, "a shape is not known")
        return
    whole: list[Axis] = [()] * (len(shape) - len(layout)) + list(layout)
    result = [
        found if size_of(found) == size else filled_axis(walk, node, 1, axis, size)
        for axis, (found, size) in enumerate(zip(whole, shape, strict=True))
    ]
    walk.set(node.outputs[0], result)
    shrink_sizes(walk, node, 1, {axis: found for axis, found in enumerate(result) if has_labels(found)})


def tile(walk: Walk, node: Node) -> None:
    """The whole tensor is repeated along axes."""
    keep_sizes(walk, node)
    layout, shape = walk.layout(node.inputs[0]), walk.shape(node.outputs[0])
    if layout is None or shape is None:
        walk.fix_inputs(node, "a shape is not known")
        return
    result: list[Axis] = []
    for found, size in zip(layout, shape, strict=True):
        times = size // max(1, size_of(found))
        result.append(found if times == 1 else (*plain_axis(times), *found))
    walk.set(node.outputs[0], result)


def depth_to_space(walk: Walk, node: Node) -> None:
    """Blocks of channels become positions: [N, C b b, H, W] to [N, C, H b, W b]."""
    layout, block = walk.layout(node.inputs[0]), int(node.attrs["blocksize"])
    if layout is None:
        walk.fix_inputs(node, "the shape of its input is not known")
        return
    sample, channels, height, width = layout
    count = size_of(channels) // block**2
    is_column_major = node.attrs.get("mode", "DCR") == "CRD"
    sizes = [count, block, block] if is_column_major else [block, block, count]
    if is_column_major and has_labels(channels):
        # Each channel's block is one run of positions, which goes as a whole.
        labels = labels_of(channels, walk.labels)
        if labels is not None:
            grid = labels.reshape(count, block**2)
            for column in grid.T[1:]:
                walk.labels.unite(grid[:, 0].copy(), column.copy())
            channels = labelled(grid[:, 0].copy())
            parts: list[Axis] | None = [channels, plain_axis(block), plain_axis(block)]
        else:
            parts = None
    else:
        parts = regroup([channels], sizes, walk.labels)
    if parts is None:
        walk.fix_inputs(node, "its blocks cannot be followed")
        return
    first, second, kept = (parts[1], parts[2], parts[0]) if is_column_major else (parts[0], parts[1], parts[2])
    walk.set(node.outputs[0], [sample, kept, (*height, *first), (*width, *second)])


def space_to_depth(walk: Walk, node: Node) -> None:
    """Positions become blocks of channels: [N, C, H b, W b] to [N, b b C, H, W]."""
    layout, block = walk.layout(node.inputs[0]), int(node.attrs["blocksize"])
    shape = walk.shape(node.outputs[0])
    if layout is None or shape is None or any(map(has_labels, layout[2:])):
        walk.fix_inputs(node, "its blocks cannot be followed")
        return
    channels: Axis = (Factor(block * block), *layout[1])
    walk.set(node.outputs[0], [layout[0], channels, *map(plain_axis, shape[2:])])


def fill(walk: Walk, node: Node) -> None:
    """One value everywhere; along axes as long as there are channels it goes with these."""
    shape = walk.shape(node.outputs[0])
    if shape is None:
        keep_sizes(walk, node)
        return
    result = [filled_axis(walk, node, 0, axis, size) for axis, size in enumerate(shape)]
    walk.set(node.outputs[0], result)
    shrink_sizes(walk, node, 0, {axis: found for axis, found in enumerate(result) if has_labels(found)})


def scatter(walk: Walk, node: Node) -> None:
    """ScatterElements: positions along one axis are computed, along the others all operands meet."""
    layouts = [walk.layout(tensor) for tensor in node.inputs]
    known = [layout for layout in layouts if layout is not None]
    if len(known) < len(layouts):
        walk.fix_inputs(node, "the shape of an operand is not known")
        return
    along = int(node.attrs.get("axis", 0)) % len(known[0])
    names = [f"'{tensor.name}'" for tensor in node.inputs]
    result = list(known[0])
    for axis in range(len(result)):
        if axis != along:
            result[axis] = walk.unite_axes(node, list(zip((layout[axis] for layout in known), names, strict=True)))
            continue
        for layout in known:
            labels = labels_of(layout[axis], walk.labels)
            if labels is not None:
                walk.labels.fix(labels, f"{node.op} '{node.name}': it writes to computed places along them")
    walk.set(node.outputs[0], result)


def from_sizes(walk: Walk, node: Node) -> None:
    """What is made of sizes alone holds no channels."""
    keep_sizes(walk, node)


MOVES: Mapping[str, Rule] = {
    "Transpose": transpose,
    "Reshape": reshape,
    "Flatten": reshape,
    "Unsqueeze": unsqueeze,
    "Squeeze": squeeze,
    "Concat": concat,
    "Split": split,
    "Slice": slice_,
    "Gather": gather,
    "Pad": pad,
    "Resize": resize,
    "Upsample": resize,
    "Expand": expand,
    "Tile": tile,
    "DepthToSpace": depth_to_space,
    "SpaceToDepth": space_to_depth,
    "Shape": from_sizes,
    "Size": from_sizes,
    "ConstantOfShape": fill,
    "ScatterElements": scatter,
    "Range": from_sizes,
    "Constant": from_sizes,
    "RandomNormal": from_sizes,
    "RandomUniform": from_sizes,
    "EyeLike": from_sizes,
}
"""Rules by operator."""
