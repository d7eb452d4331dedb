"""Turn the deploy form into standard float operators that compute the same numbers (the fake-quant form).

AscendQuant becomes Mul, Round, Add, Clip, Sub, which leaves an integer-valued float without its zero point; the layer
then runs in float on integer-valued weights and bias; AscendDequant and AscendAntiQuant become one Mul.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx_graphsurgeon as gs

from amct_onnx.graph.edit import Editor
from amct_onnx.graph.model import Model, constant_array
from amct_onnx.graph.parts import Constant, Node, Tensor
from amct_onnx.graph.weights import Array, DerivedValues
from amct_onnx.passes.base import PassResult
from amct_onnx.passes.insert_ascend import unpack_dequant_scale


@dataclass(frozen=True)
class LowerQuants:
    """``clip(round(x * scale) + offset, qmin, qmax) - offset`` in place of each AscendQuant."""

    def run(self, model: Model) -> PassResult:
        """Replace the nodes."""
        editor = Editor(model)
        changed: list[str] = []
        for node in model.nodes():
            if node.op == "AscendQuant":
                editor.insert_before(node, _fake_quant(model, node))
                editor.remove(node)
                changed.append(node.name)
        editor.commit()
        return PassResult(tuple(changed))


def _fake_quant(model: Model, quant: Node) -> list[Node]:
    limit = 2 ** (int(quant.attrs["dst_type"].removeprefix("INT")) - 1)
    prefix = f"{quant.name}.fakequant"
    values = {
        "scale": quant.attrs["scale"],
        "offset": quant.attrs["offset"],
        "min_val": -limit,
        "max_val": limit - 1,
    }
    constants = {
        name: model.add_constant(f"{prefix}.{name}", np.array(value, dtype=np.float32))
        for name, value in values.items()
    }
    steps = [
        ("Mul", "mul", ["scale"]),
        ("Round", "round", []),
        ("Add", "add", ["offset"]),
        ("Clip", "clip", ["min_val", "max_val"]),
        ("Sub", "sub", ["offset"]),
    ]
    tensor, result = quant.inputs[0], quant.outputs[0]
    result.dtype = np.dtype(np.float32)
    nodes: list[Node] = []
    for op, suffix, operands in steps:
        is_last = op == "Sub"
        if is_last:
            list.clear(result.inputs)
        output = result if is_last else model.new_tensor(f"{prefix}.{suffix}.output0", np.dtype(np.float32))
        inputs = [tensor, *(constants[name] for name in operands)]
        nodes.append(Node(op, f"{prefix}.{suffix}", inputs=inputs, outputs=[output]))
        tensor = output
    return nodes


@dataclass(frozen=True)
class LowerDequants:
    """A Mul by ``scale_d * scale_w`` in place of each AscendDequant, and float copies of its layer's integers."""

    def run(self, model: Model) -> PassResult:
        """Replace the nodes."""
        editor = Editor(model)
        changed: list[str] = []
        for node in model.nodes():
            if node.op != "AscendDequant":
                continue
            layer_nodes = accumulating_nodes(node)
            for layer_node in layer_nodes:
                for tensor in layer_node.inputs:
                    _to_float(tensor)
            scale = unpack_dequant_scale(constant_array(node.inputs[1]))
            layer = node.name.removesuffix(".dequant")
            name = f"{layer}.fakedequant"
            factor = model.add_constant(f"{name}.dqscale", scale.reshape(_broadcast_shape(layer_nodes[0], scale.size)))
            result = node.outputs[0]
            accumulator = node.inputs[0]
            editor.remove(node)
            mul = Node("Mul", f"{name}.mul", inputs=[accumulator, factor], outputs=[result])
            editor.insert_before(node, [mul])
            changed.append(layer)
        editor.commit()
        return PassResult(tuple(changed))


@dataclass(frozen=True)
class LowerAntiQuants:
    """A Mul by ``scale_d`` in place of each AscendAntiQuant; the zero point is gone already."""

    def run(self, model: Model) -> PassResult:
        """Replace the nodes."""
        editor = Editor(model)
        antis = [node for node in model.nodes() if node.op == "AscendAntiQuant"]
        for node in antis:
            lower_anti_quant(model, editor, node, node.inputs[0], "fakeantiquant")
        editor.commit()
        return PassResult(tuple(node.name for node in antis))


def lower_anti_quant(model: Model, editor: Editor, anti: Node, centred: Tensor, kind: str) -> None:
    """Replace one AscendAntiQuant by a Mul of `centred`, its integers less their offset as float."""
    name = f"{anti.name.removesuffix('.anti_quant')}.{kind}"
    factor = model.add_constant(f"{name}.scale", np.array(anti.attrs["scale"], np.float32))
    result = anti.outputs[0]
    editor.remove(anti)
    editor.insert_before(anti, [Node("Mul", f"{name}.mul", inputs=[centred, factor], outputs=[result])])


def accumulating_nodes(dequant: Node) -> list[Node]:
    """The integer nodes that feed an AscendDequant: the layer, then the bias Add of a MatMul."""
    producer = dequant.inputs[0].inputs[0]
    if producer.op != "Add":
        return [producer]
    product = next(tensor for tensor in producer.inputs if not isinstance(tensor, Constant))
    return [product.inputs[0], producer]


def _broadcast_shape(layer: Node, size: int) -> list[int]:
    """Shape that lets a per-channel vector multiply the layer's output, whose rank only a MatMul leaves open."""
    if size == 1:
        return []
    return [size] if layer.op == "MatMul" else [1, size, *[1] * (len(layer.inputs[1].shape) - 2)]


def _to_float(tensor: Tensor) -> None:
    if not isinstance(tensor, Constant) or np.dtype(tensor.dtype) not in (np.dtype(np.int8), np.dtype(np.int32)):
        return
    integers = tensor._values

    def values() -> Array:
        array = integers.load() if isinstance(integers, gs.ir.tensor.LazyValues) else integers
        return np.asarray(array, dtype=np.float32)

    tensor.values = DerivedValues(list(tensor.shape), np.dtype(np.float32), values)
