"""Walk and copy ONNX messages without touching the bytes of their tensors."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Any

from onnx import AttributeProto, GraphProto, ModelProto, NodeProto, TensorProto

CopyTensor = Callable[[TensorProto, TensorProto], None]

_HOLDERS = frozenset({AttributeProto.TENSOR, AttributeProto.TENSORS, AttributeProto.GRAPH, AttributeProto.GRAPHS})


def copy_fields(source: Any, target: Any, leave: Collection[str] = ()) -> None:
    """Copy every field of a message that is set, those named in `leave` excepted."""
    for descriptor, value in source.ListFields():
        if descriptor.name in leave:
            continue
        if hasattr(value, "MergeFrom"):
            getattr(target, descriptor.name).MergeFrom(value)
        else:
            setattr(target, descriptor.name, value)


def nested_tensors(proto: ModelProto) -> Iterator[TensorProto]:
    """Every tensor outside the main graph's initializers: in attributes, bodies and functions."""
    yield from _of_nodes(proto.graph.node)
    for function in proto.functions:
        yield from _of_nodes(function.node)


def _of_nodes(nodes: Iterable[NodeProto]) -> Iterator[TensorProto]:
    for node in nodes:
        for attribute in node.attribute:
            if attribute.type not in _HOLDERS:
                continue
            if attribute.HasField("t"):
                yield attribute.t
            yield from attribute.tensors
            for body in (*([attribute.g] if attribute.HasField("g") else []), *attribute.graphs):
                yield from body.initializer
                yield from _of_nodes(body.node)


def node_bodies(node: NodeProto) -> Iterator[GraphProto]:
    """The bodies of a node of control flow."""
    for attribute in node.attribute:
        if attribute.type in _HOLDERS:
            yield from (*([attribute.g] if attribute.HasField("g") else []), *attribute.graphs)


def nested_graphs(graph: GraphProto) -> Iterator[GraphProto]:
    """A graph and all bodies in it."""
    yield graph
    for node in graph.node:
        for body in node_bodies(node):
            yield from nested_graphs(body)


def copy_structure(proto: ModelProto, copy_tensor: CopyTensor) -> ModelProto:
    """Copy `proto`; `copy_tensor` fills each tensor's twin, main initializers first, so that bytes can stay behind."""
    result = ModelProto()
    copy_fields(proto, result, leave=("graph", "functions"))
    _copy_graph(proto.graph, result.graph, copy_tensor)
    for function in proto.functions:
        twin = result.functions.add()
        copy_fields(function, twin, leave=("node",))
        for node in function.node:
            _copy_node(node, twin.node.add(), copy_tensor)
    return result


def copy_header(source: TensorProto, target: TensorProto) -> None:
    """Name, element type and shape of a tensor, nothing else."""
    target.name, target.data_type = source.name, source.data_type
    target.dims.extend(source.dims)


def _copy_graph(source: GraphProto, target: GraphProto, copy_tensor: CopyTensor) -> None:
    copy_fields(source, target, leave=("node", "initializer"))
    target.SetInParent()
    for tensor in source.initializer:
        copy_tensor(tensor, target.initializer.add())
    for node in source.node:
        _copy_node(node, target.node.add(), copy_tensor)


def _copy_node(source: NodeProto, target: NodeProto, copy_tensor: CopyTensor) -> None:
    if not any(attribute.type in _HOLDERS for attribute in source.attribute):
        target.CopyFrom(source)
        return
    copy_fields(source, target, leave=("attribute",))
    for attribute in source.attribute:
        twin = target.attribute.add()
        copy_fields(attribute, twin, leave=("t", "tensors", "g", "graphs"))
        if attribute.HasField("t"):
            copy_tensor(attribute.t, twin.t)
        for tensor in attribute.tensors:
            copy_tensor(tensor, twin.tensors.add())
        if attribute.HasField("g"):
            _copy_graph(attribute.g, twin.g, copy_tensor)
        for body in attribute.graphs:
            _copy_graph(body, twin.graphs.add(), copy_tensor)
