"""Recurrent layers in the QDQ form: smaller weights, and the numbers of the fake-quant form; no runtime has integer
kernels for them, so they are written only when asked for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from amct_onnx.graph.edit import Editor, replace_input
from amct_onnx.graph.model import Model, constant_array
from amct_onnx.graph.parts import Constant, Node, Tensor
from amct_onnx.graph.weights import Array, DerivedValues
from amct_onnx.passes.base import PassResult
from amct_onnx.passes.insert_qdq import QdqTarget, dequantize, quantize_dequantize
from amct_onnx.passes.quant_params import RecurrentQuant, TensorQuant
from amct_onnx.passes.recurrent import (
    BIAS,
    DATA,
    HIDDEN,
    RECURRENCE,
    WEIGHT,
    RecurrentLayer,
    bias_values,
    integer_bias,
    integer_rows,
    optional_input,
    per_row,
)


@dataclass(frozen=True)
class QdqRecurrent:
    """W and R become int8 behind a DequantizeLinear, the bias is rounded to its grid, input and initial state get a
    pair for this layer alone."""

    layers: Sequence[RecurrentLayer]
    quants: Mapping[str, RecurrentQuant]
    target: QdqTarget

    def run(self, model: Model) -> PassResult:
        """Rewrite the layers."""
        editor = Editor(model)
        for layer in self.layers:
            quant = self.quants[layer.name]
            self._weight(model, editor, layer, WEIGHT, layer.weight, quant.weight_scale)
            self._weight(model, editor, layer, RECURRENCE, layer.recurrence, quant.recurrence_scale)
            self._pair(model, editor, layer, DATA, quant.data)
            self._pair(model, editor, layer, HIDDEN, quant.hidden)
            if layer.bias is not None:
                bias = constant_array(layer.bias)
                rounded = bias_values(integer_bias(layer, bias, quant), quant.accumulator_scales)
                replace_input(layer.node, BIAS, model.rewrite_constant(layer.node.inputs[BIAS], rounded))
        editor.commit()
        return PassResult(tuple(layer.name for layer in self.layers))

    def _weight(
        self,
        model: Model,
        editor: Editor,
        layer: RecurrentLayer,
        index: int,
        weight: Constant,
        scale: NDArray[np.float32],
    ) -> None:
        stem = f"{layer.name}.{'weight' if index == WEIGHT else 'recurrence'}"
        bits = self.quants[layer.name].weight_bits
        directions, rows, columns = (int(size) for size in weight.shape)
        # DequantizeLinear has one axis: the rows of several directions are stacked for it.
        is_stacked = directions > 1
        shape = [directions * rows, columns] if is_stacked else [1, rows, columns]

        def integers() -> Array:
            return integer_rows(constant_array(weight), scale, bits).reshape(shape)

        stored = model.rewrite_constant(layer.node.inputs[index], DerivedValues(shape, np.dtype(np.int8), integers))
        full = per_row(scale, directions * rows)
        zero = np.zeros(full.shape, np.int8)
        nodes = [dequantize(model, stem, stored, full, zero, axis=0 if is_stacked else 1)]
        if is_stacked:
            nodes.append(_reshaped(model, stem, nodes[0].outputs[0], [directions, rows, columns]))
        editor.insert_before(layer.node, nodes)
        replace_input(layer.node, index, nodes[-1].outputs[0])

    def _pair(self, model: Model, editor: Editor, layer: RecurrentLayer, index: int, quant: TensorQuant) -> None:
        tensor = optional_input(layer.node, index)
        if tensor is None or (tensor.inputs and tensor.inputs[0].op == "DequantizeLinear"):
            return
        stem = f"{layer.name}_{index}"
        result = model.new_tensor(f"{stem}.dequantized", np.dtype(np.float32))
        editor.insert_before(layer.node, quantize_dequantize(model, stem, tensor, result, quant, self.target))
        replace_input(layer.node, index, result)


def _reshaped(model: Model, stem: str, tensor: Tensor, shape: Sequence[int]) -> Node:
    sizes = model.add_constant(f"{stem}.shape", np.array(shape, np.int64))
    output = model.new_tensor(f"{stem}.reshaped", np.dtype(np.float32))
    return Node("Reshape", f"{stem}.reshape", inputs=[tensor, sizes], outputs=[output])
