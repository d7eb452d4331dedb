"""Turn the deploy form into operators that a CPU runtime computes exactly (the integer simulator).

Conv, Gemm and MatMul become ConvInteger and MatMulInteger on uint8 parts of the quantized input; these pad with the
zero point and accumulate in int32. A transposed convolution has no integer operator and runs on integer-valued floats
small enough to be exact, once per digit of its input; average pooling runs on integer-valued floats as it is. Parts
are added up in int64, the bias with them; AscendDequant becomes Cast and Mul.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from onnx import TensorProto

from amct_onnx.errors import ModelError
from amct_onnx.graph.edit import Editor
from amct_onnx.graph.model import Model, constant_array
from amct_onnx.graph.parts import Constant, Node, Tensor
from amct_onnx.graph.weights import Array, DerivedValues
from amct_onnx.passes.base import PassResult
from amct_onnx.passes.insert_ascend import unpack_dequant_scale
from amct_onnx.passes.integer_operands import Part, QuantizedInputs
from amct_onnx.passes.lower_fake_quant import accumulating_nodes, lower_anti_quant

_SHIFT = 128
_SIMULATED_TYPES = ("INT8", "INT16")


@dataclass(frozen=True)
class LowerToIntegers:
    """Replace every layer between AscendQuant and AscendDequant by integer operators, AscendAntiQuant by a Mul."""

    def run(self, model: Model) -> PassResult:
        """Replace the nodes.

        Raises:
            ModelError: a layer of the deploy model is of a kind that is not simulated.
        """
        editor = Editor(model)
        quants = {id(node.outputs[0]): node for node in model.nodes() if node.op == "AscendQuant"}
        dequants = [node for node in model.nodes() if node.op == "AscendDequant"]
        inputs = QuantizedInputs(model, editor)
        for dequant in dequants:
            _Layer(model, editor, dequant, quants, inputs).lower()
        for node in [node for node in model.nodes() if node.op == "AscendAntiQuant"]:
            lower_anti_quant(model, editor, node, inputs.centred(_quant_of(node, quants)), "simulated.anti_quant")
        for node in quants.values():
            editor.remove(node)
        editor.commit()
        return PassResult(tuple(node.name.removesuffix(".dequant") for node in dequants))


def _quant_of(node: Node, quants: Mapping[int, Node], index: int = 0) -> Node:
    """The AscendQuant before an input of a node."""
    quant = quants.get(id(node.inputs[index]))
    if quant is None or quant.attrs.get("dst_type", "INT8") not in _SIMULATED_TYPES:
        raise ModelError(
            f"layer '{node.name}': its input is not an AscendQuant to {' or '.join(_SIMULATED_TYPES)}, which is all "
            "that is simulated"
        )
    return quant


class _Layer:
    """One layer of the deploy model on its way to integers."""

    def __init__(
        self, model: Model, editor: Editor, dequant: Node, quants: Mapping[int, Node], inputs: QuantizedInputs
    ) -> None:
        self._model = model
        self._editor = editor
        self._dequant = dequant
        self._nodes = accumulating_nodes(dequant)
        self._layer = self._nodes[0]
        self._name = str(self._layer.name)
        self._quant = _quant_of(self._layer, quants)
        is_product = len(self._layer.inputs) > 1 and not isinstance(self._layer.inputs[1], Constant)
        self._second = _quant_of(self._layer, quants, 1) if is_product else None
        self._inputs = inputs
        self._made: list[Node] = []

    def lower(self) -> None:
        kinds: Mapping[str, Callable[[], Tensor]] = {
            "Conv": self._convolution,
            "ConvTranspose": self._transposed_convolution,
            "Gemm": self._product,
            "MatMul": self._product,
            "AveragePool": self._pooling,
        }
        if self._layer.op not in kinds:
            raise ModelError(f"layer '{self._name}': {self._layer.op} is not simulated on integers")
        accumulator = kinds[self._layer.op]()
        scale = unpack_dequant_scale(constant_array(self._dequant.inputs[1]))
        factor = self._constant("scale", scale.reshape(self._row_shape(scale.size)))
        result = self._dequant.outputs[0]
        for node in (*self._nodes, self._dequant):
            self._editor.remove(node)
        as_float = self._node("Cast", "float", [accumulator], {"to": int(TensorProto.FLOAT)})
        self._made.append(Node("Mul", f"{self._name}.simulated.dequant", inputs=[as_float, factor], outputs=[result]))
        self._editor.insert_before(self._dequant, self._made)

    def _convolution(self) -> Tensor:
        return self._biased(self._sum_of_parts("ConvInteger", dict(self._layer.attrs)))

    def _product(self) -> Tensor:
        return self._biased(self._sum_of_parts("MatMulInteger", {}))

    def _sum_of_parts(self, op: str, attrs: dict[str, object]) -> Tensor:
        """The integer operator on each byte of the input, added up."""
        weight, zero = self._factor()
        sums = []
        for part in self._inputs.as_bytes(self._quant):
            point = self._constant(f"zero_point_{part.factor}", np.array(part.zero_point, np.uint8))
            operands = [part.tensor, weight, point, zero]
            sums.append((part, self._node(op, f"{op.lower()}_{part.factor}", operands, dict(attrs))))
        return self._added(sums)

    def _transposed_convolution(self) -> Tensor:
        integers = self._layer.inputs[1]

        def as_float() -> Array:
            return constant_array(integers).astype(np.float32)

        values = DerivedValues(list(integers.shape), np.dtype(np.float32), as_float)
        weight = self._model.add_constant(f"{self._name}.simulated.weight", values)
        sums = []
        for part in self._inputs.as_digits(self._quant):
            attrs = dict(self._layer.attrs)
            product = self._node("ConvTranspose", f"transposed_{part.factor}", [part.tensor, weight], attrs)
            sums.append((part, product))
        return self._biased(self._added(sums))

    def _pooling(self) -> Tensor:
        return self._node("AveragePool", "pool", [self._inputs.centred(self._quant)], dict(self._layer.attrs))

    def _added(self, sums: list[tuple[Part, Tensor]]) -> Tensor:
        """``sum(factor * tensor)`` in int64."""
        total: Tensor | None = None
        for part, tensor in sums:
            term = self._node("Cast", f"wide_{part.factor}", [tensor], {"to": int(TensorProto.INT64)})
            if part.factor != 1:
                factor = self._constant(f"factor_{part.factor}", np.array(part.factor, np.int64))
                term = self._node("Mul", f"weighted_{part.factor}", [term, factor])
            total = term if total is None else self._node("Add", f"sum_{part.factor}", [total, term])
        if total is None:
            raise TypeError("a quantized input has at least one part")
        return total

    def _biased(self, product: Tensor) -> Tensor:
        bias = self._bias()
        if bias is None:
            return product
        values = constant_array(bias).astype(np.int64)
        shape = self._row_shape(values.size) if self._layer.op.startswith("Conv") else list(values.shape)
        return self._node("Add", "bias", [product, self._constant("bias", values.reshape(shape))])

    def _bias(self) -> Constant | None:
        """The int32 bias: that of the Add behind a MatMul, or the layer's own."""
        if len(self._nodes) > 1:
            return next(tensor for tensor in self._nodes[1].inputs if isinstance(tensor, Constant))
        own = self._layer.inputs[2:3]
        return own[0] if own and isinstance(own[0], Constant) else None

    def _factor(self) -> tuple[Tensor, Tensor]:
        """What the data is multiplied by, as uint8, and its zero point."""
        if self._second is None:
            return self._shifted_weight(), self._constant("weight_zero_point", np.array(_SHIFT, np.uint8))
        (part,) = self._inputs.as_bytes(self._second)
        return part.tensor, self._constant("second_zero_point", np.array(part.zero_point, np.uint8))

    def _shifted_weight(self) -> Tensor:
        """The weight as uint8: products of uint8 and int8 saturate on x86 machines without VNNI."""
        weight = self._layer.inputs[1]

        def shifted() -> Array:
            return (constant_array(weight).astype(np.int16) + _SHIFT).astype(np.uint8)

        values = DerivedValues(list(weight.shape), np.dtype(np.uint8), shifted)
        return self._model.add_constant(f"{self._name}.simulated.weight", values)

    def _row_shape(self, size: int) -> list[int]:
        if size == 1:
            return []
        is_image = self._layer.op.startswith("Conv")
        return [1, size, *[1] * (len(self._layer.inputs[1].shape) - 2)] if is_image else [size]

    def _constant(self, part: str, values: Array) -> Tensor:
        return self._model.add_constant(f"{self._name}.simulated.{part}", values)

    def _node(self, op: str, part: str, inputs: list[Tensor], attrs: dict[str, object] | None = None) -> Tensor:
        output = self._model.new_tensor(f"{self._name}.simulated.{part}.output0")
        self._made.append(Node(op, f"{self._name}.simulated.{part}", attrs or {}, inputs, [output]))
        return output
