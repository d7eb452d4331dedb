"""Where to cut a model, so that not all tensors that calibration watches are alive at once.

A cut goes only where everything alive is an input, a watched float tensor, or one that several nodes read. The first
are outputs of the whole model as well, and across neither does the runtime fuse, so the parts compute what the whole
computes.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path

from onnx import GraphProto, ModelProto, NodeProto, TensorProto, ValueInfoProto, helper

from amct_onnx.graph.protos import node_bodies
from amct_onnx.graph.shapes import infer_infos
from amct_onnx.runtime import Part

SEGMENT_BYTES = 2**23
"""Watched bytes that are worth a segment."""
MOST_SEGMENTS = 12
"""More save little and cost: each is a session of its own."""


def segments(
    proto: ModelProto, base_dir: Path | None, watched: Collection[str], fed: Mapping[str, Sequence[int]]
) -> tuple[Part, ...]:
    """The model in one part or several that make about equally many watched bytes, every watched tensor an output.

    Args:
        proto: the model.
        base_dir: folder of its external weights.
        watched: names of tensors.
        fed: shape of every input of the first feed.
    """
    cuts = _cuts(proto, base_dir, watched, fed) if _can_be_cut(proto, watched) else []
    if not cuts:
        return (whole(proto, watched),)
    infos = infer_infos(proto, base_dir)
    bounds = [0, *cuts, len(proto.graph.node)]
    return tuple(_part(proto, watched, infos, *ends) for ends in pairwise(bounds))


def inputs_alone(proto: ModelProto) -> Part:
    """The inputs of a model and nothing that computes, to ask the runtime what it wants to be fed."""
    node = NodeProto(op_type="Constant", output=["amct_onnx.nothing"])
    value = node.attribute.add(name="value", type="TENSOR").t
    value.data_type = TensorProto.FLOAT
    value.float_data.append(0)
    inputs = [info.name for info in proto.graph.input]
    return Part([node], proto.graph.input, [ValueInfoProto(name="amct_onnx.nothing")], (), frozenset(inputs))


def whole(proto: ModelProto, watched: Iterable[str]) -> Part:
    """The model in one part, every watched tensor an output."""
    graph = proto.graph
    given = {info.name for info in (*graph.input, *graph.output)}
    outputs = [*graph.output, *(ValueInfoProto(name=name) for name in watched if name not in given)]
    return Part(graph.node, graph.input, outputs, graph.value_info, {tensor.name for tensor in graph.initializer})


def _can_be_cut(proto: ModelProto, watched: Iterable[str]) -> bool:
    """Whether inputs are plain tensors, nodes stand in order, and every watched tensor is one of theirs."""
    graph = proto.graph
    numbers = {value for name, value in TensorProto.DataType.items() if name not in ("UNDEFINED", "STRING")}
    known = {info.name for info in graph.input} | {tensor.name for tensor in graph.initializer} | {""}
    plain = all(info.type.tensor_type.elem_type in numbers for info in graph.input)
    if graph.sparse_initializer or not plain:
        return False
    for node in graph.node:
        if not known.issuperset(node.input):
            return False
        known.update(node.output)
    return known.issuperset(watched)


def _cuts(
    proto: ModelProto, base_dir: Path | None, watched: Collection[str], fed: Mapping[str, Sequence[int]]
) -> list[int]:
    """Numbers of the nodes that begin a new part."""
    infos = infer_infos(proto, base_dir, fed)
    sizes = {name: _float_bytes(infos.get(name)) for name in watched}
    made = [sum(sizes.get(name) or 0 for name in node.output) for node in proto.graph.node]
    total = sum(made)
    count = min(MOST_SEGMENTS, total // SEGMENT_BYTES)
    if count < 2:
        return []
    cuts: list[int] = []
    since, left = 0, total
    readers = Counter(name for node in proto.graph.node for name in node.input)
    passable = {
        name for name, info in infos.items() if (name in sizes or readers[name] > 1) and _float_bytes(info) is not None
    }
    for index, is_open in enumerate(_open_places(proto.graph, passable)):
        since, left = since + made[index], left - made[index]
        if is_open and since >= total / count and left:
            cuts.append(index + 1)
            since = 0
    return cuts


def _float_bytes(info: ValueInfoProto | None) -> int | None:
    """Bytes of a tensor, 0 where its shape is not known; None if it is not known to be float32."""
    kind = info.type.tensor_type if info is not None else None
    if kind is None or kind.elem_type != TensorProto.FLOAT:
        return None
    return 4 * math.prod(dim.dim_value for dim in kind.shape.dim) if kind.HasField("shape") else 0


def _open_places(graph: GraphProto, passable: Collection[str]) -> Iterator[bool]:
    """For every node whether the model may be cut behind it."""
    last = {name: index for index, node in enumerate(graph.node) for name in read_by(node)}
    repeated = {name for node in graph.node if is_repeated(node) for name in node.output}
    hindering: set[str] = set()
    for index, node in enumerate(graph.node):
        hindering |= {name for name in node.output if name not in passable and name not in repeated}
        hindering -= {name for name in hindering if last.get(name, -1) <= index}
        yield not hindering


def is_repeated(node: NodeProto) -> bool:
    """Whether a node is a constant, which stands in every part that reads it."""
    return bool(node.op_type == "Constant")


def read_by(node: NodeProto) -> set[str]:
    """What a node reads, in its bodies as well; names that mean something else in a body do no harm."""
    names = {name for name in node.input if name}
    for body in node_bodies(node):
        names.update(info.name for info in body.output)
        for inner in body.node:
            names |= read_by(inner)
    return names


def _part(proto: ModelProto, watched: Iterable[str], infos: Mapping[str, ValueInfoProto], begin: int, end: int) -> Part:
    graph = proto.graph
    before, nodes = graph.node[:begin], graph.node[begin:end]
    later = {name for node in graph.node[end:] for name in read_by(node)}
    read = {name for node in nodes for name in read_by(node)}
    constants = [node for node in before if is_repeated(node) and read.intersection(node.output)]
    made = {name for node in (*constants, *nodes) for name in node.output}
    fed = [info for info in graph.input if info.name in read]
    earlier = {name for node in before for name in node.output}
    fed += [_boundary(name, infos) for name in sorted(read & earlier - made)]
    outputs = [info for info in graph.output if info.name in made]
    named = {info.name for info in outputs}
    repeated = {name for node in graph.node if is_repeated(node) for name in node.output}
    wanted = dict.fromkeys([*watched, *sorted(later - repeated)])
    outputs += [ValueInfoProto(name=name) for name in wanted if name in made and name not in named]
    between = [info for info in graph.value_info if info.name in made]
    return Part([*constants, *nodes], fed, outputs, between, read)


def _boundary(name: str, infos: Mapping[str, ValueInfoProto]) -> ValueInfoProto:
    """What can be said of a float tensor between two parts, whatever is fed."""
    info = infos.get(name)
    if info is None or _float_bytes(info) is None:
        return helper.make_tensor_value_info(name, TensorProto.FLOAT, None)
    return info
