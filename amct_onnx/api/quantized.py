"""Models whose weights or layers are quantized already, by whatever tool, in the operators of ONNX or onnxruntime."""

from __future__ import annotations

import re
from collections.abc import Iterator, Set

from onnx import GraphProto, ModelProto, NodeProto

from amct_onnx.api.soundness import called
from amct_onnx.errors import ModelError
from amct_onnx.graph.protos import nested_graphs

_ON_INTEGERS = re.compile(
    r"QLinear\w+|QGemm|QAttention|QMoE|QEmbedLayerNormalization|QOrdered\w+|ConvInteger|MatMulInteger\w*|MatMulNBits"
    r"|MatMulBnb4|Dynamic\w*Quantize\w+|ConvTransposeInteger\w*"
)
_QUANTIZERS = ("QuantizeLinear", "DequantizeLinear")


def refuse_quantized(proto: ModelProto) -> None:
    """Raise :class:`ModelError` if a model has layers on integers, or weights that it dequantizes: give the float one.

    A model that only dequantizes its input is a float model.
    """
    nodes = [node for graph in nested_graphs(proto.graph) for node in graph.node]
    node = next(_quantized_nodes(nodes, _constants(proto.graph)), None)
    if node is not None:
        raise ModelError(
            f"{called(node)} shows that this model is quantized already, and channels are pruned in float; prune the "
            "float model that it was made from, and quantize the pruned one"
        )


def _quantized_nodes(nodes: list[NodeProto], constants: Set[str]) -> Iterator[NodeProto]:
    known = set(constants)
    for node in nodes:
        if node.op_type in _QUANTIZERS and node.input[0] in known:
            # A weight may be quantized first, as models trained for quantization are exported.
            known.update(node.output)
            if node.op_type == "DequantizeLinear":
                yield node
        elif _ON_INTEGERS.fullmatch(node.op_type):
            yield node


def _constants(graph: GraphProto) -> set[str]:
    """Names of initializers and of results of Constant, bodies included."""
    found: set[str] = set()
    for each in nested_graphs(graph):
        found.update(tensor.name for tensor in each.initializer)
        found.update(name for node in each.node if node.op_type == "Constant" for name in node.output)
    return found
