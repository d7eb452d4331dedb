"""Turn the deploy form into integer operators that a CPU runtime computes exactly (the integer simulator).

AscendQuant becomes a uint8 tensor with zero point ``offset + 128``; Conv, Gemm and MatMul become ConvInteger and
MatMulInteger, which pad with the zero point and accumulate in int32; the bias is added in int32; AscendDequant
becomes Cast and Mul. Average pooling has no integer operator and runs on exact integer-valued floats.
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
from amct_onnx.passes.lower_fake_quant import accumulating_nodes

_SHIFT = 128


@dataclass(frozen=True)
class LowerToIntegers:
    """Replace every layer between AscendQuant and AscendDequant by integer operators."""

    def run(self, model: Model) -> PassResult:
        """Replace the nodes.

        Raises:
            ModelError: a layer of the deploy model is of a kind that is not simulated.
        """
        editor = Editor(model)
        quants = {id(node.outputs[0]): node for node in model.graph.nodes if node.op == "AscendQuant"}
        dequants = [node for node in model.graph.nodes if node.op == "AscendDequant"]
        lowered: dict[int, Tensor] = {}
        for dequant in dequants:
            _Layer(model, editor, dequant, quants, lowered).lower()
        for node in quants.values():
            editor.remove(node)
        editor.commit()
        return PassResult(tuple(node.name.removesuffix(".dequant") for node in dequants))


class _Layer:
    """One layer of the deploy model on its way to integers."""

    def __init__(
        self, model: Model, editor: Editor, dequant: Node, quants: Mapping[int, Node], lowered: dict[int, Tensor]
    ) -> None:
        self._model = model
        self._editor = editor
        self._dequant = dequant
        self._nodes = accumulating_nodes(dequant)
        self._layer = self._nodes[0]
        self._name = str(self._layer.name)
        quant = quants.get(id(self._layer.inputs[0]))
        if quant is None or quant.attrs.get("dst_type", "INT8") != "INT8":
            raise ModelError(
                f"layer '{self._name}': its input is not an int8 AscendQuant, which is all that is simulated"
            )
        self._quant = quant
        self._lowered = lowered
        self._made: list[Node] = []

    def lower(self) -> None:
        kinds: Mapping[str, Callable[[], Tensor]] = {
            "Conv": self._convolution,
            "Gemm": self._product,
            "MatMul": self._product,
            "AveragePool": self._pooling,
        }
        if self._layer.op not in kinds:
            raise ModelError(f"layer '{self._name}': {self._layer.op} is not simulated on integers")
        integers = self._quantized()
        self._input = integers
        accumulator = kinds[self._layer.op]()
        scale = unpack_dequant_scale(constant_array(self._dequant.inputs[1]))
        factor = self._constant("scale", scale.reshape(self._row_shape(scale.size)))
        result = self._dequant.outputs[0]
        for node in (*self._nodes, self._dequant):
            self._editor.remove(node)
        as_float = self._node("Cast", "float", [accumulator], {"to": int(TensorProto.FLOAT)})
        self._made.append(Node("Mul", f"{self._name}.simulated.dequant", inputs=[as_float, factor], outputs=[result]))
        self._editor.insert_before(self._dequant, self._made)

    def _quantized(self) -> Tensor:
        """The uint8 data input; made once for all layers that read it."""
        key = id(self._quant)
        if key not in self._lowered:
            name, attrs = self._quant.name, self._quant.attrs
            nodes: list[Node] = []
            tensor: Tensor = self._quant.inputs[0]
            operands = {"scale": attrs["scale"], "zero": attrs["offset"] + _SHIFT, "low": 0.0, "high": 255.0}
            constants = {
                part: self._model.add_constant(f"{name}.simulated.{part}", np.array(value, np.float32))
                for part, value in operands.items()
            }
            steps = [("Mul", ["scale"]), ("Round", []), ("Add", ["zero"]), ("Clip", ["low", "high"]), ("Cast", [])]
            for op, parts in steps:
                output = self._model.new_tensor(f"{name}.simulated.{op.lower()}.output0")
                inputs = [tensor, *(constants[part] for part in parts)]
                node_attrs = {"to": int(TensorProto.UINT8)} if op == "Cast" else {}
                nodes.append(Node(op, f"{name}.simulated.{op.lower()}", node_attrs, inputs, [output]))
                tensor = output
            self._editor.insert_before(self._quant, nodes)
            self._lowered[key] = tensor
        return self._lowered[key]

    def _weight(self) -> list[Tensor]:
        """Weight, data zero point and weight zero point.

        The weight is shifted to uint8: products of uint8 and int8 saturate on x86 machines without VNNI.
        """
        weight = self._layer.inputs[1]

        def shifted() -> Array:
            return (constant_array(weight).astype(np.int16) + _SHIFT).astype(np.uint8)

        values = DerivedValues(list(weight.shape), np.dtype(np.uint8), shifted)
        return [
            self._model.add_constant(f"{self._name}.simulated.weight", values),
            self._constant("zero_point", np.array(int(self._quant.attrs["offset"]) + _SHIFT, np.uint8)),
            self._constant("weight_zero_point", np.array(_SHIFT, np.uint8)),
        ]

    def _convolution(self) -> Tensor:
        attrs = dict(self._layer.attrs)
        product = self._node("ConvInteger", "conv", [self._input, *self._weight()], attrs)
        if len(self._layer.inputs) < 3 or self._layer.inputs[2].is_empty():
            return product
        bias = constant_array(self._layer.inputs[2])
        return self._node("Add", "bias", [product, self._constant("bias", bias.reshape(self._row_shape(bias.size)))])

    def _product(self) -> Tensor:
        product = self._node("MatMulInteger", "matmul", [self._input, *self._weight()])
        biased = self._nodes[-1] if len(self._nodes) > 1 else self._layer
        constants = [tensor for tensor in biased.inputs if isinstance(tensor, Constant)]
        bias = constants if biased is not self._layer else constants[1:]
        return self._node("Add", "bias", [product, bias[0]]) if bias else product

    def _pooling(self) -> Tensor:
        as_float = self._node("Cast", "integer_float", [self._input], {"to": int(TensorProto.FLOAT)})
        zero = self._constant("zero_float", np.array(self._quant.attrs["offset"] + _SHIFT, np.float32))
        centred = self._node("Sub", "centre", [as_float, zero])
        return self._node("AveragePool", "pool", [centred], dict(self._layer.attrs))

    def _row_shape(self, size: int) -> list[int]:
        if size == 1:
            return []
        return [1, size, *[1] * (len(self._layer.inputs[1].shape) - 2)] if self._layer.op == "Conv" else [size]

    def _constant(self, part: str, values: Array) -> Tensor:
        return self._model.add_constant(f"{self._name}.simulated.{part}", values)

    def _node(self, op: str, part: str, inputs: list[Tensor], attrs: dict[str, object] | None = None) -> Tensor:
        output = self._model.new_tensor(f"{self._name}.simulated.{part}.output0")
        self._made.append(Node(op, f"{self._name}.simulated.{part}", attrs or {}, inputs, [output]))
        return output
