"""The model in memory: an onnx-graphsurgeon graph whose parts remember where in the ModelProto they came from.

Only the structure is imported. Weights stay where they are until somebody asks for them, and every imported node and
graph keeps its own proto, from which :mod:`amct_onnx.graph.build` writes it again untouched.
"""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Iterator, MutableMapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import onnx
import onnx_graphsurgeon as gs
from onnx import AttributeProto, GraphProto, ModelProto, NodeProto, ValueInfoProto

from amct_onnx.graph.free_names import FreeNames
from amct_onnx.graph.parts import Constant, Node, Tensor, Variable, collection_paused
from amct_onnx.graph.weights import Array, StoredValues, Values, load_values

TensorMap: TypeAlias = MutableMapping[str, Any]


class Graph(gs.Graph):  # type: ignore[misc]
    """A graph or a body of a control-flow node, with what the source proto says about it.

    Attributes:
        origin: the proto it was imported from.
        initializers: constants declared in this graph, by name; what is added here gets written.
        sparse: what nodes read of its sparse initializers, by name.
        densified: names of sparse initializers that have become dense ones, and are not written.
        unread: names of initializers that nothing read in the source; they are kept all the same.
        unread_outputs: names of node outputs that nothing read in the source.
        retyped: names of tensors whose source value info is no longer true.
        resized: names of inputs and outputs of a body -> axes that have another size than in the source, each with it.
        control_nodes: the nodes that hold bodies, in graph order.
    """

    def __init__(self, name: str, opset: int, origin: GraphProto) -> None:
        super().__init__(name=name, opset=opset)
        self.origin = origin
        self.initializers: dict[str, Constant] = {}
        self.sparse: dict[str, Tensor] = {}
        self.densified: set[str] = set()
        self.unread: set[str] = set()
        self.unread_outputs: set[str] = set()
        self.retyped: set[str] = set()
        self.resized: dict[str, dict[int, int]] = {}
        self.control_nodes: list[Node] = []


@dataclass
class Model:
    """A model under surgery.

    Attributes:
        graph: the graph that passes read and edit.
        proto: the model as given; never changed.
        base_dir: folder of external weights, None for a model given in memory.
        opset: version of the default operator domain, 0 when the model uses only others.
        metadata: entries that passes add to the model's metadata.
        domains: operator domains that passes use, with their versions.
    """

    graph: Graph
    proto: ModelProto
    base_dir: Path | None
    opset: int
    metadata: dict[str, str] = field(default_factory=dict)
    domains: dict[str, int] = field(default_factory=dict)

    def graphs(self) -> Iterator[Graph]:
        """The main graph and every body of a control-flow node, outer before inner, in the order of the source."""
        return with_bodies(self.graph)

    def nodes(self) -> Iterator[Node]:
        """Every node, those of bodies included."""
        for graph in self.graphs():
            yield from graph.nodes

    def copy(self) -> Model:
        """An independent structure over the same weights; linear."""
        with collection_paused():
            graph = _copy_graph(self.graph, {})
            return Model(graph, self.proto, self.base_dir, self.opset, dict(self.metadata), dict(self.domains))

    def output_ids(self) -> set[int]:
        """``id`` of every tensor that leaves the main graph or a body."""
        return {id(tensor) for graph in self.graphs() for tensor in graph.outputs}

    def body_node_ids(self) -> set[int]:
        """``id`` of every node inside a body: such a node may read a tensor of the main graph, yet runs elsewhere."""
        return {id(node) for graph in self.graphs() if graph is not self.graph for node in graph.nodes}

    def add_constant(self, name: str, values: Values) -> Constant:
        """A new initializer of the main graph, visible in every body; the name gets a suffix when it is taken."""
        constant = Constant(self._names.like(name), values)
        self.graph.initializers[constant.name] = constant
        return constant

    def rewrite_constant(self, old: Tensor, values: Values, readers: int = 1) -> Constant:
        """A constant with new values, which takes over the name of `old` where nothing else needs it.

        Args:
            old: the constant that readers have now.
            values: the new values.
            readers: how many inputs are about to change from `old` to the result.
        """
        owner = self.graph.initializers
        is_owned = owner.get(old.name) is old
        if is_owned and len(old.outputs) <= readers and id(old) not in self._constant_outputs:
            owner[old.name] = Constant(old.name, values)
            return owner[old.name]
        return self.add_constant(old.name, values)

    def new_tensor(self, name: str, dtype: np.dtype[Any] | None = None) -> Tensor:
        """A new tensor; the name gets a suffix when it is taken."""
        return Variable(self._names.like(name), dtype=dtype)

    @cached_property
    def node_names(self) -> FreeNames:
        """The names of all nodes, which :class:`amct_onnx.graph.edit.Editor` keeps true."""
        return FreeNames(node.name for node in self.nodes())

    @cached_property
    def _constant_outputs(self) -> set[int]:
        """``id`` of every constant that leaves a graph as it is."""
        outputs = (tensor for graph in self.graphs() for tensor in graph.outputs)
        return {id(tensor) for tensor in outputs if isinstance(tensor, Constant)}

    @cached_property
    def _names(self) -> FreeNames:
        names: set[str] = set()
        for graph in self.graphs():
            names.update(graph.initializers)
            names.update(sparse.values.name for sparse in graph.origin.sparse_initializer)
            names.update(tensor.name for tensor in (*graph.inputs, *graph.outputs))
            for node in graph.nodes:
                names.update(tensor.name for tensor in node.outputs)
        return FreeNames(names)


def import_model(proto: ModelProto, base_dir: Path | None = None) -> Model:
    """Import the structure of `proto`; linear in its size, weights are not read."""
    opset = next((entry.version for entry in proto.opset_import if entry.domain in ("", "ai.onnx")), 0)
    with collection_paused():
        graph = _import_graph(proto.graph, {}, opset, base_dir)
    return Model(graph=graph, proto=proto, base_dir=base_dir, opset=int(opset))


def constant_array(tensor: Tensor) -> Array:
    """Values of a Constant, read afresh and not kept."""
    return load_values(tensor._values)


def _import_graph(proto: GraphProto, outer: TensorMap, opset: int, base_dir: Path | None) -> Graph:
    local: TensorMap = {}
    graph = Graph(name=proto.name, opset=opset, origin=proto)
    produced = {name for node in proto.node for name in node.output}
    declared = produced | {info.name for info in proto.input} | {init.name for init in proto.initializer}
    for info in (*proto.input, *proto.output, *proto.value_info):
        # A body may return a tensor of the outer graph; it is then that very tensor.
        if info.name in declared or info.name not in outer:
            local[info.name] = _import_variable(info)
    for initializer in proto.initializer:
        constant = Constant(initializer.name, StoredValues(initializer, base_dir))
        local[initializer.name] = graph.initializers[initializer.name] = constant
    for sparse in proto.sparse_initializer:
        local[sparse.values.name] = graph.sparse[sparse.values.name] = Variable(sparse.values.name)
    graph.nodes = [_import_node(node, local, outer, opset, base_dir) for node in proto.node]
    graph.control_nodes = [node for node in graph.nodes if bodies_of(node)]
    tensors: TensorMap = ChainMap(local, outer)
    graph.inputs = [tensors[info.name] for info in proto.input]
    graph.outputs = [tensors[info.name] for info in proto.output]
    graph.unread_outputs = {tensor.name for node in graph.nodes for tensor in node.outputs if not tensor.outputs}
    graph.unread = {name for name, constant in graph.initializers.items() if not constant.outputs}
    return graph


def _import_node(proto: NodeProto, local: TensorMap, outer: TensorMap, opset: int, base_dir: Path | None) -> Node:
    def read(name: str) -> Tensor:
        if name in local or name not in outer:
            return written(name)
        return outer[name]

    def written(name: str) -> Tensor:
        if not name:
            return Variable.empty()
        if name not in local:
            local[name] = Variable(name)
        return local[name]

    attrs = {
        attribute.name: _import_attribute(attribute, local, outer, opset, base_dir) for attribute in proto.attribute
    }
    inputs, outputs = [read(name) for name in proto.input], [written(name) for name in proto.output]
    return Node(proto.op_type, proto.name, attrs, inputs, outputs, proto.domain or None, proto)


def _import_attribute(
    proto: AttributeProto, local: TensorMap, outer: TensorMap, opset: int, base_dir: Path | None
) -> Any:
    """Value of an attribute, or the proto itself for kinds that no pass reads."""
    if proto.ref_attr_name:
        return proto
    if proto.type == AttributeProto.GRAPH:
        return _import_graph(proto.g, ChainMap(local, outer), opset, base_dir)
    if proto.type == AttributeProto.TENSOR:
        return Constant(proto.t.name, StoredValues(proto.t, base_dir))
    if proto.type == AttributeProto.STRING:
        return proto.s.decode("utf-8", "surrogateescape")
    if proto.type in (AttributeProto.FLOAT, AttributeProto.INT):
        return proto.i if proto.type == AttributeProto.INT else proto.f
    if proto.type in (AttributeProto.FLOATS, AttributeProto.INTS):
        return list(proto.ints if proto.type == AttributeProto.INTS else proto.floats)
    return proto


def with_bodies(graph: Graph) -> Iterator[Graph]:
    """A graph and every body inside it, outer before inner."""
    yield graph
    for node in graph.control_nodes:
        for body in bodies_of(node):
            yield from with_bodies(body)


def bodies_of(node: Node) -> list[Graph]:
    """The bodies of a control-flow node."""
    return [value for value in node.attrs.values() if isinstance(value, Graph)]


def _copy_graph(graph: Graph, copies: dict[int, Tensor]) -> Graph:
    """Copy `graph`; `copies` maps ``id`` of a tensor to its copy and is shared with the bodies."""

    def copied(tensor: Tensor) -> Tensor:
        if tensor.is_empty():
            return Variable.empty()
        if id(tensor) not in copies:
            is_constant = isinstance(tensor, Constant)
            copies[id(tensor)] = (
                Constant(tensor.name, tensor._values)
                if is_constant
                else Variable(tensor.name, tensor.dtype, tensor.shape)
            )
        return copies[id(tensor)]

    result = Graph(graph.name, graph.opset, graph.origin)
    result.initializers = {name: copied(constant) for name, constant in graph.initializers.items()}
    result.sparse = {name: copied(tensor) for name, tensor in graph.sparse.items()}
    result.densified = set(graph.densified)
    result.unread, result.unread_outputs = set(graph.unread), set(graph.unread_outputs)
    result.retyped = set(graph.retyped)
    result.resized = {name: dict(sizes) for name, sizes in graph.resized.items()}
    result.inputs = [copied(tensor) for tensor in graph.inputs]
    for node in graph.nodes:
        inputs, outputs = [copied(t) for t in node.inputs], [copied(t) for t in node.outputs]
        attrs = {key: _copy_attribute(value, copies) for key, value in node.attrs.items()}
        result.nodes.append(Node(node.op, node.name, attrs, inputs, outputs, node.domain, node.origin))
    result.outputs = [copied(tensor) for tensor in graph.outputs]
    result.control_nodes = [node for node in result.nodes if bodies_of(node)] if graph.control_nodes else []
    return result


def _copy_attribute(value: Any, copies: dict[int, Tensor]) -> Any:
    if isinstance(value, Graph):
        return _copy_graph(value, copies)
    return list(value) if isinstance(value, list) else value


def _import_variable(info: ValueInfoProto) -> Tensor:
    tensor = Variable(info.name)
    kind = info.type
    if kind.HasField("tensor_type"):
        elem_type = kind.tensor_type.elem_type
        tensor.dtype = np.dtype(onnx.helper.tensor_dtype_to_np_dtype(elem_type)) if elem_type else None
        if kind.tensor_type.HasField("shape"):
            tensor.shape = [_dimension(dim) for dim in kind.tensor_type.shape.dim]
    return tensor


def _dimension(dim: Any) -> int | str | None:
    if dim.HasField("dim_value"):
        # Some exporters write -1 for a free size.
        return int(dim.dim_value) if dim.dim_value >= 0 else None
    return str(dim.dim_param) if dim.HasField("dim_param") else None
