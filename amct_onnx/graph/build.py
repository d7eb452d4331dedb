"""From a model under surgery back to a ModelProto.

What no pass touched comes from the source proto: nodes with only their name, inputs and outputs written anew, graph
inputs, outputs, value infos, functions, metadata and doc strings as they were.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import numpy as np
from onnx import (
    AttributeProto,
    GraphProto,
    ModelProto,
    NodeProto,
    OperatorSetIdProto,
    StringStringEntryProto,
    TensorProto,
    ValueInfoProto,
    helper,
)

from amct_onnx.errors import ModelError
from amct_onnx.graph.model import Graph, Model, import_model
from amct_onnx.graph.parts import Constant, Node, collection_paused
from amct_onnx.graph.protos import copy_fields, nested_tensors
from amct_onnx.graph.weights import StoredValues, Values, raw_data

PROTOBUF_LIMIT = 2_000_000_000
_WRITTEN_ANEW = ("initializer", "sparse_initializer", "input", "output", "value_info")


@dataclass(frozen=True)
class BuiltModel:
    """A finished model whose weights are still references.

    Attributes:
        skeleton: the whole ModelProto, initializers of the main graph without their bytes.
        values: initializer name -> where its values come from.
        source: the model it was made from.
        base_dir: folder of the source's external weights.
        stays_external: whether a model that the source was made from kept weights in external files.
    """

    skeleton: ModelProto
    values: dict[str, Constant] = field(repr=False)
    source: ModelProto = field(repr=False)
    base_dir: Path | None
    stays_external: bool = False

    @cached_property
    def nbytes(self) -> int:
        """Bytes of the complete model, but for a few per initializer."""
        return int(self.skeleton.ByteSize()) + sum(int(constant._values.nbytes) for constant in self.values.values())

    @property
    def has_external_source(self) -> bool:
        """Whether the source kept weights in external files; what is made of it does so as well."""
        if self.stays_external:
            return True
        is_external = any(tensor.data_location == TensorProto.EXTERNAL for tensor in self.source.graph.initializer)
        return is_external or any(True for _ in self.external_nested(self.skeleton))

    def external_nested(self, proto: ModelProto) -> Iterator[tuple[TensorProto, StoredValues]]:
        """Tensors of `proto` (a copy of the skeleton) in bodies and attributes that lie in files of the source."""
        if self.base_dir is None:
            return
        for tensor in nested_tensors(proto):
            if tensor.data_location == TensorProto.EXTERNAL:
                origin = TensorProto()
                origin.CopyFrom(tensor)
                yield tensor, StoredValues(origin, self.base_dir)

    def fill(self, header: TensorProto, target: TensorProto) -> None:
        """Complete in `target` an initializer of the skeleton."""
        target.CopyFrom(header)
        _fill(target, self.values[header.name]._values)

    def to_proto(self) -> ModelProto:
        """The complete model in memory.

        Raises:
            ModelError: the weights exceed the 2 GB that one protobuf message can hold, or cannot be read.
        """
        if self.nbytes > PROTOBUF_LIMIT:
            raise ModelError(
                f"the model holds {self.nbytes / 1e9:.1f} GB of weights, more than one message can; save it to a file"
            )
        proto = ModelProto()
        proto.CopyFrom(self.skeleton)
        for initializer in proto.graph.initializer:
            _fill(initializer, self.values[initializer.name]._values)
        for tensor, values in self.external_nested(proto):
            make_inline(tensor, values)
        return proto

    def to_source(self) -> tuple[ModelProto, Path | None]:
        """The model as the source of another, as :func:`amct_onnx.graph.read_model` gives one: it and its folder.

        Weights that nothing changed stay references to the source's external files; the others are held in memory,
        however many there are, since the message is not serialized.

        Raises:
            ModelError: a weight cannot be read.
        """
        proto = ModelProto()
        proto.CopyFrom(self.skeleton)
        for initializer in proto.graph.initializer:
            _fill(initializer, self.values[initializer.name]._values, keep=self.base_dir)
        return proto, self.base_dir

    def stored_like(self, earlier: BuiltModel) -> BuiltModel:
        """The same model, made from an earlier one by way of :meth:`to_source`: it stays external where that is."""
        return replace(self, stays_external=self.stays_external or earlier.has_external_source)

    def to_model(self) -> Model:
        """Imported again, for who wants to look at what will be written; weights are still references."""
        model = import_model(self.skeleton, self.base_dir)
        for name, constant in model.graph.initializers.items():
            constant.values = self.values[name]._values
        return model


def make_inline(tensor: TensorProto, values: Values) -> None:
    """Put the bytes of `values` into `tensor`."""
    tensor.ClearField("external_data")
    tensor.ClearField("data_location")
    tensor.raw_data = raw_data(values)


def _fill(initializer: TensorProto, values: Values, *, keep: Path | None = None) -> None:
    """Complete `initializer`; untouched tensors byte for byte, references to files of the folder `keep` as they are."""
    if isinstance(values, StoredValues) and (not values.is_external or (keep is not None and values.base_dir == keep)):
        name = initializer.name
        initializer.CopyFrom(values.tensor)
        initializer.name = name
    else:
        make_inline(initializer, values)


def build(model: Model) -> BuiltModel:
    """Write `model` as a skeleton plus references to its weights."""
    proto = ModelProto()
    copy_fields(model.proto, proto, leave=("graph",))
    values: dict[str, Constant] = {}
    with collection_paused():
        _write_graph(model.graph, proto.graph, model.output_ids(), values)
    _write_additions(model, proto)
    # Before IR version 4 every initializer had to be an input as well.
    if proto.ir_version < 4 and not values.keys() <= {info.name for info in proto.graph.input}:
        proto.ir_version = 4
    return BuiltModel(skeleton=proto, values=values, source=model.proto, base_dir=model.base_dir)


def _write_additions(model: Model, proto: ModelProto) -> None:
    kept = [entry for entry in proto.metadata_props if entry.key not in model.metadata]
    added = [StringStringEntryProto(key=key, value=value) for key, value in model.metadata.items()]
    if added:
        del proto.metadata_props[:]
        proto.metadata_props.extend([*kept, *added])
    known = {entry.domain for entry in proto.opset_import}
    proto.opset_import.extend(
        OperatorSetIdProto(domain=domain, version=version)
        for domain, version in model.domains.items()
        if domain not in known
    )


def _write_graph(graph: Graph, proto: GraphProto, outputs: set[int], values: dict[str, Constant] | None = None) -> None:
    """Write `graph`; initializers of the main graph go to `values`, those of bodies are written in full."""
    source = graph.origin
    copy_fields(source, proto, leave=("node", *_WRITTEN_ANEW))
    for node in graph.nodes:
        _write_node(node, proto.node.add(), outputs)
    written = {
        name: constant
        for name, constant in graph.initializers.items()
        if constant.outputs or id(constant) in outputs or name in graph.unread
    }
    for constant in written.values():
        _write_initializer(constant, proto.initializer.add(), values)
    # An initializer that is also an input could be overridden by a caller; a rewritten one has another type or meaning.
    rewritten = {init.name for init in source.initializer if not _is_untouched(written, init)}
    proto.input.extend(info for info in source.input if info.name not in rewritten)
    proto.sparse_initializer.extend(s for s in source.sparse_initializer if s.values.name not in graph.densified)
    proto.output.MergeFrom(source.output)
    for info, tensor in zip(proto.output, graph.outputs, strict=True):
        info.name = tensor.name
    if values is None:
        # What a body takes and gives is its own affair; the main graph's inputs and outputs are as they were.
        for info in (*proto.input, *proto.output):
            _resize(info, graph.resized.get(info.name, {}))
    stale = rewritten | graph.retyped
    proto.value_info.extend(info for info in source.value_info if info.name not in stale)


def _resize(info: ValueInfoProto, sizes: Mapping[int, int]) -> None:
    """Declare other sizes; numbers stay numbers, since results of a loop without a run have the declared shape."""
    for axis, dim in enumerate(info.type.tensor_type.shape.dim if sizes else ()):
        if axis in sizes:
            is_number = dim.HasField("dim_value")
            dim.Clear()
            if is_number:
                dim.dim_value = sizes[axis]


def _is_untouched(written: dict[str, Constant], initializer: TensorProto) -> bool:
    values = written[initializer.name]._values if initializer.name in written else None
    return isinstance(values, StoredValues) and values.tensor is initializer


def _write_initializer(constant: Constant, proto: TensorProto, values: dict[str, Constant] | None) -> None:
    stored = constant._values
    if values is None:
        proto.data_type = _tensor_type(constant.dtype)
        proto.dims.extend(constant.shape)
        if isinstance(stored, StoredValues):
            proto.CopyFrom(stored.tensor)
        else:
            make_inline(proto, stored)
        proto.name = constant.name
        return
    is_stored = isinstance(stored, StoredValues)
    proto.data_type = stored.tensor.data_type if is_stored else _tensor_type(stored.dtype)
    if stored.shape:
        proto.dims.extend(stored.shape)
    proto.name = constant.name
    values[constant.name] = constant


@cache
def _tensor_type(dtype: np.dtype[Any]) -> int:
    return int(helper.np_dtype_to_tensor_dtype(dtype))


def _write_node(node: Node, proto: NodeProto, outputs: set[int]) -> None:
    origin = node.origin
    if origin is None:
        _write_new_node(node, proto)
        return
    if any(isinstance(value, Graph) for value in node.attrs.values()):
        _copy_with_bodies(node, origin, proto, outputs)
    else:
        proto.CopyFrom(origin)
    if node.name:
        proto.name = node.name
    del proto.input[:]
    proto.input.extend(tensor.name for tensor in node.inputs)
    del proto.output[:]
    proto.output.extend(tensor.name for tensor in node.outputs)


def _write_new_node(node: Node, proto: NodeProto) -> None:
    proto.op_type = node.op
    if node.name:
        proto.name = node.name
    if node.domain:
        proto.domain = node.domain
    proto.input.extend(tensor.name for tensor in node.inputs)
    proto.output.extend(tensor.name for tensor in node.outputs)
    for name, value in node.attrs.items():
        if isinstance(value, AttributeProto):
            proto.attribute.add().CopyFrom(value)
        else:
            proto.attribute.append(helper.make_attribute(name, value))


def _copy_with_bodies(node: Node, origin: NodeProto, proto: NodeProto, outputs: set[int]) -> None:
    copy_fields(origin, proto, leave=("attribute",))
    for attribute in origin.attribute:
        written: AttributeProto = proto.attribute.add()
        body = node.attrs[attribute.name]
        if isinstance(body, Graph):
            copy_fields(attribute, written, leave=("g",))
            _write_graph(body, written.g, outputs)
        else:
            written.CopyFrom(attribute)
