"""The Ascend deploy form: AscendQuant before, int8 weights and int32 bias inside, AscendDequant behind every layer.

Node names, attributes and the packing of the dequantization scale follow AMCT's published operator definitions: the
multiplier ``scale`` is 1 / scale_d, the parameter of AscendDequant is a uint64 whose low 32 bits are ``scale_d *
scale_w`` as float32. The zero point is not folded into the bias; the Ascend compiler does that.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from amct_onnx.graph.channels import Channels
from amct_onnx.graph.edit import Editor, replace_input, replace_output
from amct_onnx.graph.model import Model, constant_array
from amct_onnx.graph.parts import Node, Tensor
from amct_onnx.graph.weights import Array, DerivedValues
from amct_onnx.passes.base import PassResult
from amct_onnx.passes.locate import Layer
from amct_onnx.passes.quant_params import LayerQuant, TensorQuant, quantize_bias, quantize_weight

GE_FLOAT32, GE_FLOAT16 = 0, 1


@dataclass(frozen=True)
class InsertQuant:
    """Put an AscendQuant on the data input of each layer, and on the second factor of a product."""

    layers: Sequence[Layer]
    quants: Mapping[str, LayerQuant]

    def run(self, model: Model) -> PassResult:
        """Insert the nodes; equal ones are merged by :class:`MergeQuants`."""
        editor = Editor(model)
        for layer in self.layers:
            quants = self.quants[layer.name]
            nodes = [quant_node(model, f"{layer.name}.quant", layer.activation, quants.data)]
            if layer.second is not None and quants.second is not None:
                nodes.append(quant_node(model, f"{layer.name}.quant_1", layer.second, quants.second))
            for index, node in enumerate(nodes):
                replace_input(layer.node, index, node.outputs[0])
            editor.insert_before(layer.node, nodes)
        editor.commit()
        return PassResult(tuple(layer.name for layer in self.layers))


def quant_node(model: Model, name: str, tensor: Tensor, quant: TensorQuant) -> Node:
    """An AscendQuant of that name on `tensor`, not placed yet."""
    return Node(
        "AscendQuant",
        name,
        attrs={
            "scale": float(np.float32(1.0) / np.float32(quant.scale)),
            "offset": float(quant.offset),
            "dst_type": f"INT{quant.bits}",
        },
        inputs=[tensor],
        outputs=[model.new_tensor(f"{name}.output0", np.dtype(f"int{quant.bits}"))],
    )


@dataclass(frozen=True)
class QuantizeWeights:
    """Replace weights by integers, ``q = clamp(round(w / scale_w))``; layers with one weight and one scale share it."""

    layers: Sequence[Layer]
    quants: Mapping[str, LayerQuant]

    def run(self, model: Model) -> PassResult:
        """Replace the weight of every layer that has one."""
        for members in group_by_weight(self.layers, self.quants):
            first = members[0]
            values = integer_weight(first, self.quants[first.name])
            index = weight_index(first)
            integers = model.rewrite_constant(first.node.inputs[index], values, len(members))
            for layer in members:
                replace_input(layer.node, index, integers)
        return PassResult(tuple(layer.name for layer in self.layers if layer.weight is not None))


def group_by_weight(layers: Sequence[Layer], quants: Mapping[str, LayerQuant]) -> list[list[Layer]]:
    """Layers with a weight, those together that read the same one and quantize it alike."""
    groups: dict[tuple[int, Channels, int, bytes], list[Layer]] = {}
    for layer in layers:
        if layer.weight is not None:
            quant = quants[layer.name]
            key = (id(layer.weight), layer.out_channels, quant.weight_bits, quant.weight_scale.tobytes())
            groups.setdefault(key, []).append(layer)
    return list(groups.values())


def weight_index(layer: Layer) -> int:
    """Which input of the layer's node is its weight."""
    if layer.spec.weight is None:
        raise TypeError(f"{layer.op_type} has no weight")
    return layer.spec.weight


def integer_weight(layer: Layer, quant: LayerQuant) -> DerivedValues:
    """Integer weights of a layer, computed when they are written."""
    weight, channels = layer.weight, layer.out_channels
    if weight is None:
        raise TypeError(f"{layer.op_type} has no weight")

    def integers() -> Array:
        return quantize_weight(constant_array(weight), quant.weight_scale, channels, quant.weight_bits)

    return DerivedValues(list(weight.shape), np.dtype(np.int8), integers)


@dataclass(frozen=True)
class QuantizeBiases:
    """Replace biases by int32, ``round(b / (scale_w * scale_d))``."""

    layers: Sequence[Layer]
    quants: Mapping[str, LayerQuant]

    def run(self, model: Model) -> PassResult:
        """Replace the bias of every layer that has one."""
        changed: list[str] = []
        for layer in self.layers:
            if layer.bias is None:
                continue
            scale = self.quants[layer.name].accumulator_scale
            values = quantize_bias(layer.name, constant_array(layer.bias), scale)
            node, index = bias_position(layer)
            replace_input(node, index, model.rewrite_constant(node.inputs[index], values))
            changed.append(layer.name)
        return PassResult(tuple(changed))


def bias_position(layer: Layer) -> tuple[Node, int]:
    """The node and input index where a layer's bias enters."""
    if layer.bias_add is None:
        return layer.node, int(layer.spec.bias or 0)
    return layer.bias_add, 1 if layer.bias_add.inputs[0] is layer.node.outputs[0] else 0


@dataclass(frozen=True)
class InsertDequant:
    """Put an AscendDequant behind each layer (behind the bias Add of a MatMul)."""

    layers: Sequence[Layer]
    quants: Mapping[str, LayerQuant]

    def run(self, model: Model) -> PassResult:
        """Insert the nodes and let every reader of the layer follow."""
        editor = Editor(model)
        retyped: set[str] = set()
        for layer in self.layers:
            producer = layer.bias_add or layer.node
            result = producer.outputs[0]
            param = model.add_constant(
                f"{layer.name}.dequant.param", pack_dequant_scale(self.quants[layer.name].accumulator_scale)
            )
            accumulator, output = _open_output(model, editor, layer.name, producer, result)
            retyped |= {accumulator.name, layer.node.outputs[0].name}
            dequant = Node(
                "AscendDequant",
                f"{layer.name}.dequant",
                attrs={"dtype": GE_FLOAT32},
                inputs=[accumulator, param],
                outputs=[output],
            )
            editor.insert_after(producer, [dequant])
        for graph in model.graphs():
            graph.retyped |= retyped
        editor.commit()
        return PassResult(tuple(layer.name for layer in self.layers))


def _open_output(model: Model, editor: Editor, layer: str, producer: Node, result: Tensor) -> tuple[Tensor, Tensor]:
    """Split `result` into what the layer accumulates and what its readers get; a graph output keeps its name."""
    if editor.is_output(result):
        accumulator = model.new_tensor(f"{layer}_output0")
        replace_output(producer, 0, accumulator)
        return accumulator, result
    output = model.new_tensor(f"{layer}.dequant.output0", np.dtype(np.float32))
    editor.move_consumers(result, output)
    return result, output


def pack_dequant_scale(scale: NDArray[np.float32]) -> NDArray[np.uint64]:
    """Float32 bits in the low half of a uint64, shape unchanged; the high half (shift, weight offset) is zero."""
    return np.ascontiguousarray(scale, dtype=np.float32).view(np.uint32).astype(np.uint64)


def unpack_dequant_scale(param: NDArray[np.uint64]) -> NDArray[np.float32]:
    """Inverse of :func:`pack_dequant_scale`."""
    return np.asarray((param & np.uint64(0xFFFFFFFF)).astype(np.uint32).view(np.float32))


@dataclass(frozen=True)
class MergeQuants:
    """AscendQuant nodes of a graph or body on one tensor with equal scale, offset and type become the first one."""

    def run(self, model: Model) -> PassResult:
        """Merge them."""
        editor = Editor(model)
        changed: list[str] = []
        for graph in model.graphs():
            kept: dict[tuple[int, float, float, str], Node] = {}
            for node in graph.nodes:
                if node.op != "AscendQuant":
                    continue
                key = (id(node.inputs[0]), node.attrs["scale"], node.attrs["offset"], node.attrs["dst_type"])
                first = kept.setdefault(key, node)
                if first is not node:
                    editor.move_consumers(node.outputs[0], first.outputs[0])
                    editor.remove(node)
                    changed.append(node.name)
        editor.commit()
        return PassResult(tuple(changed))
