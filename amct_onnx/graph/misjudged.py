"""Transposed convolutions whose results have other sizes than onnx's inference says.

It stops amid the sizes of a result that is asked for smaller than the input, and adds ``output_padding`` to what
``auto_pad`` alone decides in onnxruntime.
"""

from __future__ import annotations

from onnx import GraphProto, ModelProto, NodeProto, ValueInfoProto, helper

from amct_onnx.graph.protos import nested_graphs

_UNTOLD = "SizesUntold"
"""An operator that inference does not know."""


def hide_misjudged(light: ModelProto, inferred: ModelProto) -> bool:
    """Take from inference the nodes that it misjudges, whose results keep their types; whether there are any.

    Args:
        light: the model to infer again; changed.
        inferred: what inference made of it.
    """
    is_any = False
    for graph, told in zip(nested_graphs(light.graph), nested_graphs(inferred.graph), strict=True):
        infos = {info.name: info for info in (*told.value_info, *told.output)}
        for node in graph.node:
            if node.op_type != "ConvTranspose" or not _is_misjudged(node, infos.get(node.output[0])):
                continue
            is_any = True
            node.op_type = _UNTOLD
            _forget_shape(graph, infos[node.output[0]])
    return is_any


def _is_misjudged(node: NodeProto, info: ValueInfoProto | None) -> bool:
    if info is None or not info.type.tensor_type.HasField("shape"):
        return False
    attributes = {one.name: helper.get_attribute_value(one) for one in node.attribute}
    wanted = attributes.get("output_shape")
    if wanted:
        return len(info.type.tensor_type.shape.dim) != 2 + len(wanted)
    return attributes.get("auto_pad") in (b"SAME_UPPER", b"SAME_LOWER") and any(attributes.get("output_padding", ()))


def _forget_shape(graph: GraphProto, told: ValueInfoProto) -> None:
    known = [info for info in (*graph.value_info, *graph.output) if info.name == told.name]
    for info in known or [graph.value_info.add(name=told.name)]:
        info.type.tensor_type.elem_type = told.type.tensor_type.elem_type
        info.type.tensor_type.ClearField("shape")
