"""Layers inside control-flow bodies in the QDQ form: each has pairs of its own, since runtimes see no pair across a
body's border; what lies between the layers stays float."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from amct_onnx.graph.edit import Editor, replace_input, replace_output
from amct_onnx.graph.model import Model
from amct_onnx.graph.op_table import is_clamp
from amct_onnx.graph.parts import Node, Tensor
from amct_onnx.passes.base import PassResult
from amct_onnx.passes.insert_qdq import QdqTarget, quantize_dequantize
from amct_onnx.passes.locate import Layer
from amct_onnx.passes.qdq_placement import NEEDS_OUTPUT_PAIR
from amct_onnx.passes.quant_params import LayerQuant, TensorQuant


def body_results(model: Model, layers: Iterable[Layer]) -> dict[str, Tensor]:
    """Results of layers in bodies that must be quantized for the layer's integer kernel: layer name -> tensor.

    A plan knows tensors by name, so a result whose name another body's tensor has is left out.
    """
    nodes = [layer for layer in layers if layer.in_body and layer.op_type in NEEDS_OUTPUT_PAIR]
    if not nodes:
        return {}
    names = Counter(tensor.name for node in model.nodes() for tensor in node.outputs)
    body_of = {id(node): graph for graph in model.graphs() for node in graph.nodes}
    outputs = model.output_ids()

    def result(layer: Layer) -> Tensor:
        tensor = layer.output
        if id(tensor) in outputs or len(tensor.outputs) != 1:
            return tensor
        reader = tensor.outputs[0]
        return reader.outputs[0] if is_clamp(reader) and body_of[id(reader)] is body_of[id(layer.node)] else tensor

    found = {layer.name: result(layer) for layer in nodes}
    return {name: tensor for name, tensor in found.items() if names[tensor.name] == 1}


@dataclass(frozen=True)
class QdqBodies:
    """A pair before each layer in a body, for it alone, and one behind those whose kernel writes integers.

    Attributes:
        layers: those that run on integers.
        quants: layer name -> quantization.
        results: layer name -> quantization of its result, and of what a Relu or Clip makes of it.
        target: the runtime.
    """

    layers: Sequence[Layer]
    quants: Mapping[str, LayerQuant]
    results: Mapping[str, TensorQuant]
    target: QdqTarget

    def run(self, model: Model) -> PassResult:
        """Insert the pairs."""
        editor = Editor(model)
        tensors = body_results(model, self.layers)
        for layer in self.layers:
            self._before(model, editor, layer)
            if layer.name in self.results:
                self._behind(model, editor, tensors[layer.name], self.results[layer.name])
        editor.commit()
        return PassResult(tuple(layer.name for layer in self.layers))

    def _before(self, model: Model, editor: Editor, layer: Layer) -> None:
        tensor, quant = layer.activation, self.quants[layer.name].data
        result = model.new_tensor(f"{layer.name}_0.dequantized", np.dtype(np.float32))
        editor.insert_before(
            layer.node, quantize_dequantize(model, f"{layer.name}_0", tensor, result, quant, self.target)
        )
        replace_input(layer.node, 0, result)

    def _behind(self, model: Model, editor: Editor, tensor: Tensor, quant: TensorQuant) -> None:
        producer: Node = tensor.inputs[0]
        source = model.new_tensor(f"{tensor.name}.float", np.dtype(np.float32))
        replace_output(producer, 0, source)
        editor.insert_after(producer, quantize_dequantize(model, tensor.name, source, tensor, quant, self.target))
