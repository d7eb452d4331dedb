"""What every later step takes for granted of a model, checked once, in words that name the node or tensor."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Set
from dataclasses import dataclass
from functools import cache
from graphlib import CycleError, TopologicalSorter

import onnx
from onnx import AttributeProto, GraphProto, NodeProto, TensorProto, ValueInfoProto

from amct_onnx.errors import ModelError
from amct_onnx.graph.protos import node_bodies

_PACKED_TYPES = {"UINT4", "INT4", "FLOAT4E2M1", "UINT2", "INT2"}


def check_graph(graph: GraphProto, outer: Set[str], opset: int) -> None:
    """Check a graph and its bodies; `outer` names what a body may read from outside.

    Raises:
        ModelError: a node, tensor or weight contradicts itself or another.
    """
    _check_text("the graph", (graph.name, graph.doc_string))
    for info in (*graph.input, *graph.output, *graph.value_info):
        _check_type(info)
    given = {*(info.name for info in graph.input), *(tensor.name for tensor in graph.initializer)}
    given |= {sparse.values.name for sparse in graph.sparse_initializer}
    _check_makers(graph, given)
    known = {*outer, *given, *(name for node in graph.node for name in node.output)}
    for tensor in graph.initializer:
        _check_text("a weight", (tensor.name,))
        _check_size(tensor)
    for node in graph.node:
        names = (attribute.name for attribute in node.attribute)
        _check_text("a node", (node.name, node.op_type, node.domain, *node.input, *node.output, *names))
        _check_node(node, opset)
        for name in node.input:
            if name and name not in known:
                raise ModelError(
                    f"{called(node)} reads tensor '{name}', which nothing in the model makes; export it again"
                )
        for body in node_bodies(node):
            check_graph(body, known, opset)


def _check_text(owner: str, texts: Iterable[str | bytes]) -> None:
    """protobuf hands out bytes where a text is not UTF-8."""
    for text in texts:
        if isinstance(text, bytes):
            raise ModelError(
                f"{owner} bears the text {text!r}, which is not UTF-8; the file is damaged, export it again"
            )


def _check_type(info: ValueInfoProto) -> None:
    _check_text("a tensor", (info.name,))
    if not info.type.HasField("tensor_type"):
        return
    kind = info.type.tensor_type
    _check_text(f"tensor '{info.name}'", (dim.dim_param for dim in kind.shape.dim if dim.HasField("dim_param")))
    if kind.elem_type not in TensorProto.DataType.values():
        raise ModelError(
            f"tensor '{info.name}' has element type {kind.elem_type}, which onnx does not know; update onnx"
        )


def _check_makers(graph: GraphProto, given: Set[str]) -> None:
    """Each tensor has one origin, and none is made from itself."""
    makers: dict[str, int] = {}
    for index, node in enumerate(graph.node):
        for name in node.output:
            if name and (name in given or name in makers):
                raise ModelError(
                    f"{called(node)} makes tensor '{name}', which is there already; export the model again"
                )
            makers[name] = index
    before = {
        index: {makers[name] for name in (*node.input, *_read_inside(node)) if name and name in makers}
        for index, node in enumerate(graph.node)
    }
    if all(made < index for index, read in before.items() for made in read):
        return
    try:
        TopologicalSorter(before).prepare()
    except CycleError as error:
        node = graph.node[error.args[1][0]]
        raise ModelError(f"{called(node)} needs its own result; export the model again") from error


def _read_inside(node: NodeProto) -> Iterator[str]:
    """Names that the bodies of a node read from outside."""
    for body in node_bodies(node):
        own = {*(info.name for info in body.input), *(tensor.name for tensor in body.initializer)}
        own |= {name for inner in body.node for name in inner.output}
        read = (name for inner in body.node for name in (*inner.input, *_read_inside(inner)))
        yield from (name for name in read if name not in own)


@dataclass(frozen=True)
class _Demands:
    """What ONNX demands of a node of one type: least numbers of inputs and outputs, types of attributes."""

    inputs: int
    outputs: int
    attributes: Mapping[str, int]


@cache
def _demands(op_type: str, opset: int) -> _Demands | None:
    if not onnx.defs.has(op_type, "") or opset < 1:
        return None
    try:
        schema = onnx.defs.get_schema(op_type, opset, "")
    except onnx.defs.SchemaError:
        return None
    types = {
        name: int(attribute.type.value)  # type: ignore[attr-defined]
        for name, attribute in schema.attributes.items()
    }
    return _Demands(schema.min_input, schema.min_output, types)


def _check_node(node: NodeProto, opset: int) -> None:
    demands = _demands(node.op_type, opset) if node.domain in ("", "ai.onnx") else None
    if demands is None:
        return
    for kind, names, least in (("input", node.input, demands.inputs), ("output", node.output, demands.outputs)):
        if len(names) < least:
            raise ModelError(
                f"{called(node)} has {len(names)} {kind}s, the operator needs at least {least}; export the model again"
            )
    for attribute in node.attribute:
        wanted = demands.attributes.get(attribute.name, attribute.type)
        # Very old models do not say of which type an attribute is.
        if attribute.type not in (wanted, AttributeProto.UNDEFINED):
            kinds = AttributeProto.AttributeType
            raise ModelError(
                f"{called(node)} has attribute '{attribute.name}' of type {kinds.Name(attribute.type)} instead of "
                f"{kinds.Name(wanted)}; export the model again"
            )


def _check_size(tensor: TensorProto) -> None:
    """Weights kept in the model as bytes must be as many as type and shape say; other kinds are left to onnx."""
    names = TensorProto.DataType
    is_known = tensor.data_type in names.values() and tensor.data_type not in (names.Value("UNDEFINED"),)
    if tensor.data_location == TensorProto.EXTERNAL or not is_known or names.Name(tensor.data_type) in _PACKED_TYPES:
        return
    count = math.prod(tensor.dims)
    if tensor.HasField("raw_data"):
        have, want, unit = len(tensor.raw_data), count * _item_size(tensor), "bytes"
    elif tensor.data_type == TensorProto.FLOAT:
        have, want, unit = len(tensor.float_data), count, "values"
    else:
        return
    if have != want:
        raise ModelError(
            f"weight '{tensor.name}' of shape {list(tensor.dims)} holds {have} {unit} instead of {want}; "
            "the file is damaged, export the model again"
        )


def _item_size(tensor: TensorProto) -> int:
    return int(onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type).itemsize)


def called(node: NodeProto) -> str:
    """A node as messages name it."""
    return f"node '{node.name}' ({node.op_type})" if node.name else f"a node without name ({node.op_type})"
