"""What onnx's converter of operator sets gets wrong, mended where that is possible."""

from __future__ import annotations

from collections.abc import Iterator

from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper

from amct_onnx.graph.model import Model, import_model
from amct_onnx.graph.parts import Node
from amct_onnx.graph.shapes import infer_types

_NUMBERS_AS_INPUTS = 11
_NUMBERS = {"Clip": 1, "Pad": 2}
"""Operators whose attributes became inputs then, and the first input that is a number."""
_RESIZE_COORDINATES = 11
_HARDMAX_AXIS = 13


def refuse_what_changes_meaning(source: Model, current: int, minimum: int) -> None:
    """Raise ValueError for a Hardmax: its axis means another thing from operator set 13 on, which nobody translates."""
    if not current < _HARDMAX_AXIS <= minimum:
        return
    for node in source.nodes():
        if node.op == "Hardmax" and not node.domain and node.attrs.get("axis", 1) != -1:
            raise ValueError(f"node '{node.name}' is a Hardmax, which changed meaning")


def mend(converted: ModelProto, source: ModelProto, current: int) -> None:
    """Mend `converted`, which was made from `source` of operator set `current`."""
    if current < _RESIZE_COORDINATES:
        _keep_resize_coordinates(converted)
    if current < _NUMBERS_AS_INPUTS:
        _type_numbers(converted, source)


def _keep_resize_coordinates(converted: ModelProto) -> None:
    """Say how Resize finds its samples: the converter leaves that to the default, which is another one than before."""
    before = {"coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
    for node in import_model(converted).nodes():
        if node.op == "Resize" and not node.domain and node.origin is not None:
            missing = before.keys() - node.attrs.keys()
            node.origin.attribute.extend(helper.make_attribute(name, before[name]) for name in sorted(missing))


def _type_numbers(converted: ModelProto, source: ModelProto) -> None:
    """Numbers that were attributes are inputs of the data's type, not of float32 whatever that is."""
    concerned = [node for node in import_model(converted).nodes() if node.op in _NUMBERS and not node.domain]
    types = infer_types(source) if concerned else {}
    for node in concerned:
        kind = types.get(node.inputs[0].name, TensorProto.FLOAT)
        if kind in (TensorProto.FLOAT16, TensorProto.DOUBLE):
            for constant in _numbers(node):
                tensor = constant.attribute[0].t
                values = numpy_helper.to_array(tensor).astype(helper.tensor_dtype_to_np_dtype(kind))
                tensor.CopyFrom(numpy_helper.from_array(values, tensor.name))


def _numbers(node: Node) -> Iterator[NodeProto]:
    """The Constant nodes, of the converter's making, that hold the numbers of a node."""
    for tensor in node.inputs[_NUMBERS[node.op] :]:
        maker = tensor.inputs[0] if tensor.inputs else None
        if maker is not None and maker.op == "Constant" and maker.origin is not None:
            yield maker.origin
