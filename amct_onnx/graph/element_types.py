"""Element types of tensors that do not declare theirs."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from onnx import AttributeProto, GraphProto, TensorProto, helper

from amct_onnx.graph.model import Model
from amct_onnx.graph.op_table import data_inputs, is_known, resolve_constant, spec_of
from amct_onnx.graph.shapes import infer_types

_OTHER_FLOATS = frozenset({TensorProto.FLOAT16, TensorProto.BFLOAT16, TensorProto.DOUBLE})


def settle_types(model: Model) -> None:
    """Tell every tensor that does not know it its element type, as far as it can be found out.

    Through operators that keep the type, in one walk; and by inference where the model holds other floats than
    float32, for there a type that is not known cannot be taken to be float32.
    """
    if not _OTHER_FLOATS.isdisjoint(_mentioned(model.proto.graph)):
        types = infer_types(model.proto, model.base_dir)
        for node in model.graph.nodes:
            for tensor in node.outputs:
                kind = types.get(tensor.name, TensorProto.UNDEFINED)
                if tensor.dtype is None and kind != TensorProto.UNDEFINED:
                    tensor.dtype = np.dtype(helper.tensor_dtype_to_np_dtype(kind))
    _spread(model)


def _spread(model: Model) -> None:
    for graph in model.graphs():
        for node in graph.nodes:
            spec = spec_of(node)
            if not is_known(node) or not node.outputs or node.outputs[0].dtype is not None:
                continue
            weight = node.inputs[spec.weight : spec.weight + 1] if spec.weight is not None else []
            tensors = [*map(resolve_constant, weight), *data_inputs(node)]
            known = (tensor.dtype for tensor in tensors if tensor is not None)
            node.outputs[0].dtype = next((dtype for dtype in known if dtype is not None), None)


def _mentioned(graph: GraphProto) -> Iterator[int]:
    """Element types of stored tensors and inputs, and those that casts ask for."""
    for info in graph.input:
        yield info.type.tensor_type.elem_type
    for tensor in graph.initializer:
        yield tensor.data_type
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.type == AttributeProto.TENSOR:
                yield attribute.t.data_type
            elif attribute.type == AttributeProto.GRAPH:
                yield from _mentioned(attribute.g)
            elif attribute.name in ("to", "dtype") and attribute.type == AttributeProto.INT:
                yield attribute.i
