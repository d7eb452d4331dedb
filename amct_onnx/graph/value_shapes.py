"""Tensors whose shape the values of other tensors decide, as the number of boxes that a detector finds."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from onnx import GraphProto, NodeProto

from amct_onnx.graph.protos import node_bodies

_COUNTING = frozenset({"NonZero", "NonMaxSuppression", "Unique", "Compress", "StringSplit", "ImageDecoder"})
"""Operators that give as many entries as they find."""

_SIZING: dict[str, slice] = {
    "Range": slice(0, None),
    "ConstantOfShape": slice(0, None),
    "Expand": slice(1, None),
    "Reshape": slice(1, None),
    "Tile": slice(1, None),
    "Pad": slice(1, None),
    "Slice": slice(1, None),
    "Resize": slice(2, None),
    "Upsample": slice(1, None),
    "TopK": slice(1, None),
    "OneHot": slice(1, 2),
    "Split": slice(1, None),
    "Squeeze": slice(1, None),
    "Unsqueeze": slice(1, None),
    "CenterCropPad": slice(1, None),
    "MaxUnpool": slice(2, None),
    "AffineGrid": slice(1, None),
    "Col2Im": slice(1, None),
    "DFT": slice(1, None),
    "STFT": slice(1, None),
    "If": slice(0, 1),
    "Loop": slice(0, None),
    "SequenceAt": slice(1, None),
    "SplitToSequence": slice(1, None),
}
"""Operators -> the inputs whose values say what shape the results have."""

_MEASURING = frozenset({"Shape", "Size", "SequenceLength"})


@dataclass
class _Found:
    """Tensors of which the values, or the shape too, depend on values that the model is fed."""

    computed: set[str] = field(default_factory=set)
    shaped: set[str] = field(default_factory=set)


def shaped_by_values(graph: GraphProto) -> frozenset[str]:
    """Names of the tensors, those of bodies included, whose shape depends on more than the shapes of the inputs.

    What no table knows (operators of other domains, functions of the model) is taken to depend on all it reads.
    """
    found = _Found(computed={info.name for info in graph.input})
    _follow(graph, found)
    return frozenset(found.shaped)


def _follow(graph: GraphProto, found: _Found) -> None:
    for node in graph.node:
        read = list(_read(node))
        values = any(name in found.computed for name in read)
        shapes = any(name in found.shaped for name in read)
        for body in node_bodies(node):
            if values:
                found.computed.update(info.name for info in body.input)
            if shapes:
                found.shaped.update(info.name for info in body.input)
            _follow(body, found)
            values = values or any(info.name in found.computed for info in body.output)
            shapes = shapes or any(info.name in found.shaped for info in body.output)
        if node.op_type in _MEASURING and _is_standard(node):
            values, shapes = shapes, False
        shapes = shapes or _decides(node, found)
        if values:
            found.computed.update(node.output)
        if shapes:
            found.shaped.update(node.output)


def _decides(node: NodeProto, found: _Found) -> bool:
    """Whether values that the node reads say what shape its results have."""
    if not _is_standard(node) or node.op_type in _COUNTING:
        deciding: Sequence[str] = node.input
    else:
        deciding = node.input[_SIZING.get(node.op_type, slice(0, 0))]
    return any(name in found.computed for name in deciding)


def _read(node: NodeProto) -> Iterator[str]:
    yield from filter(None, node.input)
    for body in node_bodies(node):
        for inner in body.node:
            yield from _read(inner)


def _is_standard(node: NodeProto) -> bool:
    return node.domain in ("", "ai.onnx")
