"""Tensors whose shape the values of other tensors decide, as the number of boxes that a detector finds."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from onnx import GraphProto, NodeProto

from amct_onnx.graph.protos import node_bodies

_COUNTING = frozenset(
    {"NonZero", "NonMaxSuppression", "Unique", "Compress", "StringNormalizer", "StringSplit", "ImageDecoder"}
)
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
    "BlackmanWindow": slice(0, None),
    "HammingWindow": slice(0, None),
    "HannWindow": slice(0, None),
    "MelWeightMatrix": slice(0, None),
    "Col2Im": slice(1, None),
    "DFT": slice(1, None),
    "STFT": slice(1, None),
    "If": slice(0, 1),
    "SequenceAt": slice(1, None),
    "SplitToSequence": slice(1, None),
}
"""Operators -> the inputs whose values say what shape the results have."""

_MEASURING = frozenset({"Shape", "Size", "SequenceLength"})

_RANDOM = frozenset({"RandomNormal", "RandomUniform"})
"""Operators whose values are others in every run, though they read nothing."""


@dataclass
class _Found:
    """Tensors of which the values, or the shape too, depend on values that the model is fed."""

    computed: set[str] = field(default_factory=set)
    shaped: set[str] = field(default_factory=set)

    def note(self, name: str, *, values: bool, shape: bool) -> None:
        """Add what is found of a tensor."""
        if name and values:
            self.computed.add(name)
        if name and shape:
            self.shaped.add(name)

    def pass_on(self, name: str, to: str) -> bool:
        """Let one tensor depend on what another depends on; whether that is new."""
        before = (to in self.computed, to in self.shaped)
        self.note(to, values=name in self.computed, shape=name in self.shaped)
        return before != (to in self.computed, to in self.shaped)


def shaped_by_values(graph: GraphProto) -> frozenset[str]:
    """Names of the tensors, those of bodies included, whose shape depends on more than the shapes of the inputs.

    What no table knows (operators of other domains, functions of the model) is taken to depend on all it reads.
    """
    found = _Found(computed={info.name for info in graph.input})
    _follow(graph, found)
    return frozenset(found.shaped)


def _follow(graph: GraphProto, found: _Found) -> None:
    for node in graph.node:
        if _is_standard(node) and node.op_type in ("Loop", "Scan"):
            _follow_runs(node, found)
        else:
            _follow_node(node, found)


def _follow_node(node: NodeProto, found: _Found) -> None:
    read = list(_read(node))
    values = any(name in found.computed for name in read) or (_is_standard(node) and node.op_type in _RANDOM)
    shapes = any(name in found.shaped for name in read)
    for body in node_bodies(node):
        for info in body.input:
            found.note(info.name, values=values, shape=shapes)
        _follow(body, found)
        values = values or any(info.name in found.computed for info in body.output)
        shapes = shapes or any(info.name in found.shaped for info in body.output)
    if node.op_type in _MEASURING and _is_standard(node):
        values, shapes = shapes, False
    shapes = shapes or _decides(node, found)
    for name in node.output:
        found.note(name, values=values, shape=shapes)


def _follow_runs(node: NodeProto, found: _Found) -> None:
    """A Loop or Scan: each run is given what the one before made, and values may say how many there are."""
    (body,) = node_bodies(node)
    is_loop = node.op_type == "Loop"
    inputs = [info.name for info in body.input]
    made = [info.name for info in body.output]
    # Before operator set 9 a Scan has the lengths of its sequences before what its body is given.
    for outer, inner in zip(
        node.input if is_loop else node.input[len(node.input) - len(inputs) :], inputs, strict=False
    ):
        found.pass_on(outer, inner)
    carried = list(zip(inputs[1:] if is_loop else inputs[: -_scanned(node)], made, strict=False))
    is_new = True
    while is_new:
        _follow(body, found)
        is_new = any(found.pass_on(behind, before) for before, behind in carried)
    is_counted = is_loop and any(name in found.computed for name in (*node.input[:2], made[0]))
    first = 1 if is_loop else 0
    for before, name in zip((before for before, _ in carried[first:]), node.output, strict=False):
        # Without a run it is what was there before.
        found.pass_on(before, name)
    for behind, name in zip(made[first:], node.output, strict=False):
        found.pass_on(behind, name)
        found.note(name, values=is_counted, shape=is_counted)


def _scanned(node: NodeProto) -> int:
    return next(attribute.i for attribute in node.attribute if attribute.name == "num_scan_inputs")


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
