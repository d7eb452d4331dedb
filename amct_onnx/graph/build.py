"""From a model under surgery back to a ModelProto.

What no pass touched comes from the source proto: nodes with only their name, inputs and outputs written anew, graph
inputs, outputs, value infos, functions, metadata and doc strings as they were. New nodes go through
onnx-graphsurgeon's exporter.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import onnx_graphsurgeon as gs
from onnx import AttributeProto, GraphProto, ModelProto, NodeProto, TensorProto, helper
from onnx_graphsurgeon.exporters.onnx_exporter import OnnxExporter

from amct_onnx.errors import ModelError
from amct_onnx.graph.model import Graph, Model, Node
from amct_onnx.graph.weights import StoredValues

PROTOBUF_LIMIT = 2_000_000_000


@dataclass(frozen=True)
class BuiltModel:
    """A finished model whose weights are still references.

    Attributes:
        skeleton: the whole ModelProto, initializers without their bytes.
        values: initializer name -> where its values come from.
    """

    skeleton: ModelProto
    values: dict[str, gs.Constant] = field(repr=False)

    @property
    def nbytes(self) -> int:
        """Bytes of all initializers together."""
        return sum(int(constant._values.nbytes) for constant in self.values.values())

    @property
    def has_external_source(self) -> bool:
        """Whether any weight came from an external file."""
        return any(
            isinstance(constant._values, StoredValues) and constant._values.is_external
            for constant in self.values.values()
        )

    def to_proto(self) -> ModelProto:
        """The complete model in memory.

        Raises:
            ModelError: the weights exceed the 2 GB that one protobuf message can hold; save to a file instead.
        """
        if self.nbytes > PROTOBUF_LIMIT:
            raise ModelError(
                f"the model holds {self.nbytes / 1e9:.1f} GB of weights, more than one message can; save it to a file"
            )
        proto = ModelProto()
        proto.CopyFrom(self.skeleton)
        for initializer in proto.graph.initializer:
            fill(initializer, self.values[initializer.name])
        return proto


def fill(initializer: TensorProto, constant: gs.Constant) -> None:
    """Put the values of `constant` into `initializer` as raw bytes (untouched tensors byte for byte)."""
    values = constant._values
    if isinstance(values, StoredValues) and not values.is_external:
        name = initializer.name
        initializer.CopyFrom(values.tensor)
        initializer.name = name
        return
    array = values.load() if isinstance(values, gs.ir.tensor.LazyValues) else values
    initializer.raw_data = array.tobytes()


def build(model: Model) -> BuiltModel:
    """Write `model` as a skeleton plus references to its weights."""
    proto = ModelProto()
    source = model.proto
    for name in ("ir_version", "producer_name", "producer_version", "domain", "model_version", "doc_string"):
        if source.HasField(name):
            setattr(proto, name, getattr(source, name))
    proto.opset_import.MergeFrom(source.opset_import)
    proto.metadata_props.MergeFrom(source.metadata_props)
    proto.training_info.MergeFrom(source.training_info)
    proto.functions.MergeFrom(source.functions)
    values: dict[str, gs.Constant] = {}
    _write_graph(model.graph, proto.graph, values)
    return BuiltModel(skeleton=proto, values=values)


def _write_graph(graph: Graph, proto: GraphProto, values: dict[str, gs.Constant] | None) -> None:
    """Write `graph`; initializers of the main graph go to `values`, those of bodies are written in full."""
    source = graph.origin
    proto.name = source.name
    if source.HasField("doc_string"):
        proto.doc_string = source.doc_string
    proto.quantization_annotation.MergeFrom(source.quantization_annotation)
    proto.sparse_initializer.MergeFrom(source.sparse_initializer)
    if "metadata_props" in GraphProto.DESCRIPTOR.fields_by_name:
        proto.metadata_props.MergeFrom(source.metadata_props)
    for node in graph.nodes:
        _write_node(node, proto.node.add())
    outputs = {id(tensor) for tensor in graph.outputs}
    for name, constant in graph.initializers.items():
        if constant.outputs or id(constant) in outputs or name in graph.unread:
            _write_initializer(constant, proto.initializer.add(), values)
    # An initializer that is also an input could be overridden by a caller; a rewritten one has another type or meaning.
    rewritten = {init.name for init in source.initializer if not _is_untouched(graph, init)}
    proto.input.extend(info for info in source.input if info.name not in rewritten)
    proto.output.MergeFrom(source.output)
    for info, tensor in zip(proto.output, graph.outputs, strict=True):
        info.name = tensor.name
    stale = rewritten | graph.retyped
    proto.value_info.extend(info for info in source.value_info if info.name not in stale)


def _is_untouched(graph: Graph, initializer: TensorProto) -> bool:
    constant = graph.initializers.get(initializer.name)
    if constant is None or not (constant.outputs or initializer.name in graph.unread):
        return False
    values = constant._values
    return isinstance(values, StoredValues) and values.tensor is initializer


def _write_initializer(constant: gs.Constant, proto: TensorProto, values: dict[str, gs.Constant] | None) -> None:
    proto.name = constant.name
    if values is None:
        proto.data_type = helper.np_dtype_to_tensor_dtype(constant.dtype)
        proto.dims.extend(constant.shape)
        fill(proto, constant)
        return
    stored = constant._values
    is_stored = isinstance(stored, StoredValues)
    proto.data_type = stored.tensor.data_type if is_stored else helper.np_dtype_to_tensor_dtype(constant.dtype)
    proto.dims.extend(int(dim) for dim in constant.shape)
    values[constant.name] = constant


def _write_node(node: Node, proto: NodeProto) -> None:
    origin: NodeProto | None = getattr(node, "origin", None)
    if origin is None:
        proto.CopyFrom(OnnxExporter.export_node(node))
        return
    if any(isinstance(value, Graph) for value in node.attrs.values()):
        _copy_with_bodies(node, origin, proto)
    else:
        proto.CopyFrom(origin)
    if node.name:
        proto.name = node.name
    del proto.input[:]
    proto.input.extend(tensor.name for tensor in node.inputs)
    del proto.output[:]
    proto.output.extend(tensor.name for tensor in node.outputs)


def _copy_with_bodies(node: Node, origin: NodeProto, proto: NodeProto) -> None:
    proto.op_type = origin.op_type
    for name in ("domain", "doc_string", "overload"):
        if name in NodeProto.DESCRIPTOR.fields_by_name and origin.HasField(name):
            setattr(proto, name, getattr(origin, name))
    if "metadata_props" in NodeProto.DESCRIPTOR.fields_by_name:
        proto.metadata_props.MergeFrom(origin.metadata_props)
    for attribute in origin.attribute:
        written: AttributeProto = proto.attribute.add()
        body = node.attrs[attribute.name]
        if not isinstance(body, Graph):
            written.CopyFrom(attribute)
            continue
        written.name = attribute.name
        written.type = AttributeProto.GRAPH
        if attribute.HasField("doc_string"):
            written.doc_string = attribute.doc_string
        _write_graph(body, written.g, None)
