"""The QDQ form: pairs of QuantizeLinear and DequantizeLinear on activations, integer weights and biases."""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from amct_onnx.errors import RecordError
from amct_onnx.graph.edit import Editor, replace_input, replace_output
from amct_onnx.graph.model import Model, constant_array
from amct_onnx.graph.op_table import Kernel, data_inputs, is_clamp, kernel_of, rank_of, resolve_constant
from amct_onnx.graph.parts import Constant, Node, Tensor
from amct_onnx.graph.weights import Array
from amct_onnx.passes.base import PassResult
from amct_onnx.passes.insert_ascend import bias_position, group_by_weight, integer_weight, weight_index
from amct_onnx.passes.locate import Layer
from amct_onnx.passes.qdq_placement import is_product, keeps_scale
from amct_onnx.passes.quant_params import LayerQuant, TensorQuant, quantize_bias


class QdqTarget(enum.Enum):
    """Which runtime the QDQ form is written for."""

    ONNXRUNTIME = "onnxruntime"
    """uint8 activations, zero point ``offset + 128``; OpenVINO reads it as well."""
    TENSORRT = "tensorrt"
    """int8 activations with zero point 0; needs symmetric quantization."""


@dataclass(frozen=True)
class QdqWeights:
    """Weights become int8 behind a DequantizeLinear per channel (or per tensor)."""

    layers: Sequence[Layer]
    quants: Mapping[str, LayerQuant]

    def run(self, model: Model) -> PassResult:
        """Replace the weight of every layer; layers of one graph with one weight and one scale share it."""
        editor = Editor(model)
        graph_of = {id(node): id(graph) for graph in model.graphs() for node in graph.nodes}
        for members in group_by_weight(self.layers, self.quants):
            layer = members[0]
            old, integers = layer.node.inputs[weight_index(layer)], integer_weight(layer, self.quants[layer.name])
            stored = model.rewrite_constant(old, integers, len(members))
            # One body does not see what another computes, and runtimes see no pair across a body's border.
            apart: dict[int, list[Layer]] = {}
            for member in members:
                apart.setdefault(graph_of[id(member.node)], []).append(member)
            for together in apart.values():
                self._dequantized(model, editor, together, stored)
        editor.commit()
        return PassResult(tuple(layer.name for layer in self.layers if layer.weight is not None))

    def _dequantized(self, model: Model, editor: Editor, members: Sequence[Layer], integers: Tensor) -> None:
        layer = members[0]
        quant = self.quants[layer.name]
        scale = quant.weight_scale if quant.weight_scale.size > 1 else quant.weight_scale.reshape(())
        axis = layer.out_channels.axis if quant.weight_scale.size > 1 else None
        node = dequantize(model, f"{layer.name}.weight", integers, scale, np.zeros(scale.shape, np.int8), axis=axis)
        editor.insert_before(layer.node, [node])
        for member in members:
            replace_input(member.node, weight_index(member), node.outputs[0])


@dataclass(frozen=True)
class QdqBiases:
    """Biases become int32 behind a DequantizeLinear with scale ``scale_d * scale_w``.

    A MatMul's bias stays float, rounded to that same grid and shaped [1, N]: with one dimension onnxruntime would
    merge both into a float Gemm. TensorRT wants every bias in float.
    """

    layers: Sequence[Layer]
    quants: Mapping[str, LayerQuant]
    target: QdqTarget

    def run(self, model: Model) -> PassResult:
        """Replace the bias of every layer that has one."""
        editor = Editor(model)
        changed: list[str] = []
        for layer in self.layers:
            if layer.bias is None:
                continue
            changed.append(layer.name)
            scale = self.quants[layer.name].accumulator_scale
            integers = quantize_bias(layer.name, constant_array(layer.bias), scale)
            node, index = bias_position(layer)
            if layer.bias_add is not None or self.target is QdqTarget.TENSORRT:
                values = (integers * scale.astype(np.float64)).astype(np.float32).reshape(_bias_shape(layer, integers))
                replace_input(node, index, model.rewrite_constant(node.inputs[index], values))
                continue
            constant = model.rewrite_constant(node.inputs[index], integers)
            full = np.broadcast_to(scale, integers.shape).copy() if scale.size > 1 else scale.reshape(())
            axis = 0 if scale.size > 1 else None
            zero_point = np.zeros(full.shape, np.int32)
            dequant = dequantize(model, f"{layer.name}.bias", constant, full, zero_point, axis=axis)
            replace_input(node, index, dequant.outputs[0])
            editor.insert_before(node, [dequant])
        editor.commit()
        return PassResult(tuple(changed))


def _bias_shape(layer: Layer, bias: Array) -> Sequence[int]:
    """Shape of a bias that stays float; two dimensions where that does not add one to the product."""
    is_row = layer.bias_add is not None and bias.ndim == 1 and rank_of(layer.activation) != 1
    return (1, bias.size) if is_row else bias.shape


@dataclass(frozen=True)
class QdqPairs:
    """Activations get one pair per tensor.

    Where the producer has an integer kernel every reader takes the dequantized tensor, so that the kernel can write
    integers; elsewhere only readers with an integer kernel do, and the others keep the exact values.

    Attributes:
        pairs: tensor name -> its quantization; names that the model does not have are ignored.
        layers: the quantized layers.
        target: the runtime.
    """

    pairs: Mapping[str, TensorQuant]
    layers: Sequence[Layer]
    target: QdqTarget

    def run(self, model: Model) -> PassResult:
        """Insert the pairs."""
        editor = Editor(model)
        chosen = _Readers(model, self.layers, self.pairs)
        changed: list[str] = []
        for tensor, anchor in _tensors_with_anchor(model):
            quant = self.pairs.get(tensor.name)
            if quant is None:
                continue
            if isinstance(tensor, Constant) or resolve_constant(tensor) is not None:
                self._constant(model, editor, tensor, quant, chosen)
            else:
                self._computed(model, editor, tensor, anchor, quant, chosen)
            changed.append(tensor.name)
        editor.commit()
        return PassResult(tuple(changed))

    def _computed(
        self, model: Model, editor: Editor, tensor: Tensor, anchor: Node | None, quant: TensorQuant, chosen: _Readers
    ) -> None:
        producer = tensor.inputs[0] if tensor.inputs else None
        for_all = chosen.writes_integers(producer)
        is_public = editor.is_output(tensor) and for_all
        readers = chosen.integer_readers(tensor)
        if not readers and not for_all:
            return
        # A graph output keeps its name: it becomes the dequantized tensor, which is what leaves the graph.
        result = tensor if is_public else model.new_tensor(f"{tensor.name}.dequantized", np.dtype(np.float32))
        source = tensor
        if not is_public:
            editor.move_consumers(tensor, result, None if for_all else readers)
        if is_public and producer is not None:
            source = model.new_tensor(f"{tensor.name}.float", np.dtype(np.float32))
            replace_output(producer, 0, source)
        pair = quantize_dequantize(model, tensor.name, source, result, quant, self.target)
        if anchor is None:
            editor.insert_before(model.graph.nodes[0], pair)
        else:
            editor.insert_after(anchor, pair)

    def _constant(self, model: Model, editor: Editor, tensor: Tensor, quant: TensorQuant, chosen: _Readers) -> None:
        readers = chosen.integer_readers(tensor)
        if not readers:
            return
        values = constant_array(resolve_constant(tensor))
        zero_point = _zero_point(tensor.name, quant, self.target)
        limits = np.iinfo(zero_point.dtype.name)
        integers = np.clip(np.rint(values / np.float32(quant.scale)) + int(zero_point), limits.min, limits.max)
        stored = model.add_constant(f"{tensor.name}.quantized", integers.astype(zero_point.dtype))
        node = dequantize(model, tensor.name, stored, np.array(quant.scale, np.float32), zero_point)
        editor.move_consumers(tensor, node.outputs[0], readers)
        editor.insert_before(model.graph.nodes[0], [node])


class _Readers:
    """Which nodes run on integers under a set of pairs."""

    def __init__(self, model: Model, layers: Sequence[Layer], pairs: Mapping[str, TensorQuant]) -> None:
        self._pairs = pairs
        self._layers = {id(layer.node) for layer in layers}
        self._adds = {id(layer.bias_add): layer.node for layer in layers if layer.bias_add is not None}
        self._integer = {id(node) for node in model.graph.nodes if self._runs_on_integers(node)}

    def integer_readers(self, tensor: Tensor) -> list[Node]:
        """Readers of `tensor` that have an integer kernel."""
        return [node for node in tensor.outputs if id(node) in self._integer]

    def writes_integers(self, producer: Node | None) -> bool:
        """Whether `producer` (or what a Relu or Clip follows) can write integers directly."""
        if producer is None:
            return False
        if is_clamp(producer):
            inner = producer.inputs[0]
            return bool(inner.inputs) and len(inner.outputs) == 1 and self.writes_integers(inner.inputs[0])
        if id(producer) in self._adds:
            return True
        return id(producer) in self._integer

    def _runs_on_integers(self, node: Node) -> bool:
        if id(node) in self._layers:
            return True
        kernel = kernel_of(node)
        if kernel is Kernel.SAME_SCALE:
            return keeps_scale(node) and node.inputs[0].name in self._pairs
        if not (kernel is Kernel.ELEMENTWISE or is_product(node)) or id(node) in self._adds:
            return False
        return all(tensor.name in self._pairs for tensor in data_inputs(node))


def quantize_dequantize(
    model: Model, name: str, source: Tensor, result: Tensor, quant: TensorQuant, target: QdqTarget
) -> list[Node]:
    """A pair from `source` to `result`, not placed yet."""
    zero_point = _zero_point(name, quant, target)
    integer = model.new_tensor(f"{name}.quantized", zero_point.dtype)
    parameters = [
        model.add_constant(f"{name}.scale", np.array(quant.scale, np.float32)),
        model.add_constant(f"{name}.zero_point", zero_point),
    ]
    return [
        Node("QuantizeLinear", f"{name}.quantize", inputs=[source, *parameters], outputs=[integer]),
        Node("DequantizeLinear", f"{name}.dequantize", inputs=[integer, *parameters], outputs=[result]),
    ]


def _zero_point(name: str, quant: TensorQuant, target: QdqTarget) -> NDArray[np.generic]:
    if target is QdqTarget.TENSORRT and quant.offset:
        raise RecordError(
            f"tensor '{name}': TensorRT wants zero point 0, the plan says {quant.offset}; make a symmetric plan"
        )
    if target is QdqTarget.TENSORRT:
        return np.array(quant.offset, np.int8 if quant.bits == 8 else np.int16)
    shift = 2 ** (quant.bits - 1)
    return np.array(quant.offset + shift, np.uint8 if quant.bits == 8 else np.uint16)


def dequantize(
    model: Model, name: str, integers: Tensor, scale: Array, zero_point: Array, *, axis: int | None = None
) -> Node:
    """A DequantizeLinear node on a constant."""
    return Node(
        "DequantizeLinear",
        f"{name}.dequantize",
        attrs={} if axis is None else {"axis": axis},
        inputs=[
            integers,
            model.add_constant(f"{name}.scale", np.asarray(scale, np.float32)),
            model.add_constant(f"{name}.zero_point", zero_point),
        ],
        outputs=[model.new_tensor(f"{name}.dequantized", np.dtype(np.float32))],
    )


def _tensors_with_anchor(model: Model) -> list[tuple[Tensor, Node | None]]:
    """Inputs, constants and node outputs of the main graph, each with the node it comes from."""
    found: dict[int, tuple[Tensor, Node | None]] = {}
    for tensor in (*model.graph.inputs, *model.graph.initializers.values()):
        found[id(tensor)] = (tensor, None)
    for node in model.graph.nodes:
        for tensor in node.outputs:
            found[id(tensor)] = (tensor, node)
    return list(found.values())
