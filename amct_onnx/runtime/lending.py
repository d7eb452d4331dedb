"""Models whose large weights stay where they are: the runtime reads them in place instead of out of a message.

A serialized model would hold every weight twice more, once as bytes and once as the runtime has parsed them.
"""

from __future__ import annotations

import math
from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray
from onnx import ModelProto, NodeProto, TensorProto, ValueInfoProto, helper

from amct_onnx.graph.build import BuiltModel, make_inline
from amct_onnx.graph.protos import copy_fields, copy_header
from amct_onnx.graph.weights import StoredValues, Values, load_values

SMALLEST_LENT = 2**16
"""Bytes; smaller weights stay in the message, for they may hold shapes."""
_LENT_TYPES = frozenset(
    getattr(TensorProto, name)
    for name in ("FLOAT", "DOUBLE", "FLOAT16", "INT8", "INT16", "INT32", "INT64", "UINT8", "UINT16", "UINT32", "UINT64")
)

_WEIGHTS = ("initializer",)
_PARTED = ("initializer", "node", "input", "output", "value_info")

Loan: TypeAlias = dict[str, NDArray[Any]]


@dataclass(frozen=True)
class Part:
    """What of a model to run.

    Attributes:
        nodes: its nodes, in order.
        inputs: what is fed, and weights that could be.
        outputs: what may be fetched; the type may be missing, which the runtime finds out by itself.
        infos: what is known of the tensors between.
        weights: initializers that it reads.
    """

    nodes: Sequence[NodeProto] = field(repr=False)
    inputs: Sequence[ValueInfoProto]
    outputs: Sequence[ValueInfoProto]
    infos: Sequence[ValueInfoProto] = field(repr=False)
    weights: Container[str] = field(repr=False)


def lend_proto(model: ModelProto, part: Part | None = None) -> tuple[ModelProto, Loan]:
    """A copy of a model, or of a part of it, without its large inline weights, and these weights by name.

    Weights in external files stay references, and those that a caller may override stay in the message.
    """
    light, loan = _without_weights(model, part), Loan()
    inputs = {info.name for info in light.graph.input}
    for tensor in _initializers(model, part):
        if tensor.name not in inputs and tensor.HasField("raw_data") and _is_large(tensor):
            _lend(tensor, StoredValues(tensor, None), light, loan)
        else:
            light.graph.initializer.append(tensor)
    return light, loan


def lend_built(built: BuiltModel, part: Part | None = None) -> tuple[ModelProto, Loan]:
    """The same of a finished model, whose weights are computed here one after the other."""
    light, loan = _without_weights(built.skeleton, part), Loan()
    inputs = {info.name for info in light.graph.input}
    for header in _initializers(built.skeleton, part):
        if header.name not in inputs and _is_large(header):
            _lend(header, built.values[header.name]._values, light, loan)
        else:
            built.fill(header, light.graph.initializer.add())
    for tensor, values in built.external_nested(light):
        make_inline(tensor, values)
    return light, loan


def _without_weights(model: ModelProto, part: Part | None) -> ModelProto:
    """A copy of a model, or of a part of it, without initializers."""
    light = ModelProto()
    copy_fields(model, light, leave=("graph",))
    copy_fields(model.graph, light.graph, leave=_WEIGHTS if part is None else _PARTED)
    light.graph.SetInParent()
    if part is not None:
        light.graph.node.extend(part.nodes)
        light.graph.input.extend(part.inputs)
        light.graph.output.extend(part.outputs)
        light.graph.value_info.extend(part.infos)
    return light


def _initializers(model: ModelProto, part: Part | None) -> Iterator[TensorProto]:
    return (tensor for tensor in model.graph.initializer if part is None or tensor.name in part.weights)


def _is_large(header: TensorProto) -> bool:
    if header.data_type not in _LENT_TYPES:
        return False
    itemsize = np.dtype(helper.tensor_dtype_to_np_dtype(header.data_type)).itemsize
    return math.prod(header.dims) * itemsize >= SMALLEST_LENT


def _lend(header: TensorProto, values: Values, light: ModelProto, loan: Loan) -> None:
    """Refer to a file that is never read: the runtime takes what it is given under the tensor's name."""
    target = light.graph.initializer.add()
    copy_header(header, target)
    target.data_location = TensorProto.EXTERNAL
    target.external_data.add(key="location", value="lent")
    loan[header.name] = np.ascontiguousarray(load_values(values))
