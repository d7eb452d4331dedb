"""Recurrent layers in the Ascend form, and back to ONNX's own operators for the forms that run elsewhere.

``BasicLSTMInplaceFillWindowCache`` and ``BasicGRUInplaceFillWindowCache`` quantize input and hidden state themselves:
attributes hold the scales, one uint64 parameter those of both accumulators, W's first.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from onnx import AttributeProto

from amct_onnx.graph.edit import Editor
from amct_onnx.graph.model import Model, constant_array
from amct_onnx.graph.parts import Constant, Node, Tensor, Variable
from amct_onnx.graph.weights import Array, DerivedValues
from amct_onnx.passes.base import PassResult
from amct_onnx.passes.insert_anti_quant import anti_quant_node
from amct_onnx.passes.insert_ascend import pack_dequant_scale, quant_node, unpack_dequant_scale
from amct_onnx.passes.quant_params import RecurrentQuant, TensorQuant
from amct_onnx.passes.recurrent import (
    BIAS,
    CELL,
    DATA,
    HIDDEN,
    LENGTHS,
    PEEPHOLES,
    RECURRENCE,
    WEIGHT,
    RecurrentLayer,
    bias_values,
    integer_bias,
    integer_rows,
    optional_input,
    per_row,
)

ASCEND_NAMES = {f"Basic{op}InplaceFillWindowCache": op for op in ("LSTM", "GRU", "RNN")}
"""Names of the operators that quantize by themselves; the one for RNN stands in on the way to the fake-quant form."""

_STATES = {"LSTM": (HIDDEN, CELL), "GRU": (HIDDEN,), "RNN": (HIDDEN,)}
_GE_TYPES = {8: 2, 16: 6}
"""Numbers that the compiler has for INT8 and INT16."""
_NO_CLIP = -1.0


@dataclass(frozen=True)
class QuantizeRecurrent:
    """A recurrent layer becomes its Ascend operator: int8 weights, int32 bias, scales beside them."""

    layers: Sequence[RecurrentLayer]
    quants: Mapping[str, RecurrentQuant]

    def run(self, model: Model) -> PassResult:
        """Replace the nodes."""
        editor = Editor(model)
        for layer in self.layers:
            states = _States(model, layer)
            node = _ascend_node(model, layer, self.quants[layer.name], states)
            editor.insert_before(layer.node, [*states.made, node])
            editor.remove(layer.node)
        editor.commit()
        return PassResult(tuple(layer.name for layer in self.layers))


class _States:
    """The initial states of a layer, which the Ascend operators want as inputs; zeros where the layer has none."""

    def __init__(self, model: Model, layer: RecurrentLayer) -> None:
        self.made: list[Node] = []
        self._model, self._layer = model, layer
        self._zeros: Tensor | None = None

    def at(self, index: int) -> Tensor:
        """The state that comes in at this input."""
        given = optional_input(self._layer.node, index)
        if given is not None:
            return given
        if self._zeros is None:
            self._zeros = self._fixed() or self._of_batch()
        return self._zeros

    def _fixed(self) -> Tensor | None:
        shape = self._layer.activation.shape
        if shape is None or len(shape) != 3 or not isinstance(shape[1], int) or shape[1] < 1:
            return None
        directions, _, hidden = self._layer.recurrence.shape
        zeros = np.zeros((int(directions), shape[1], int(hidden)), np.float32)
        return self._model.add_constant(f"{self._layer.name}.initial", zeros)

    def _of_batch(self) -> Tensor:
        """Zeros for as many samples as the input has."""
        model, name = self._model, f"{self._layer.name}.initial"
        directions, _, hidden = (np.array([size], np.int64) for size in self._layer.recurrence.shape)
        sizes = self._node("Shape", "shape", [self._layer.activation])
        batch = self._node("Gather", "batch", [sizes, model.add_constant(f"{name}.axis", np.array([1], np.int64))])
        ends = [model.add_constant(f"{name}.directions", directions), model.add_constant(f"{name}.hidden", hidden)]
        whole = self._node("Concat", "sizes", [ends[0], batch, ends[1]], {"axis": 0})
        return self._node("ConstantOfShape", "zeros", [whole])

    def _node(self, op: str, part: str, inputs: list[Tensor], attrs: dict[str, Any] | None = None) -> Tensor:
        name = f"{self._layer.name}.initial.{part}"
        output = self._model.new_tensor(f"{name}.output0")
        self.made.append(Node(op, name, attrs or {}, inputs, [output]))
        return output


def _ascend_node(model: Model, layer: RecurrentLayer, quant: RecurrentQuant, initial: _States) -> Node:
    node = layer.node
    states = _STATES[node.op]
    given = {index: optional_input(node, index) for index in (LENGTHS, PEEPHOLES)}
    weights = [_rewritten(model, node.inputs[index], layer, index, quant) for index in (WEIGHT, RECURRENCE)]
    scales = np.concatenate(quant.accumulator_scales)
    param = model.add_constant(f"{layer.name}.dequant.param", pack_dequant_scale(scales))
    inputs = [node.inputs[DATA], *weights, *(initial.at(index) for index in states)]
    inputs += [_bias(model, layer, quant), given[LENGTHS], None, param]
    if given[PEEPHOLES] is not None:
        inputs.append(given[PEEPHOLES])
    outputs = list(node.outputs)
    list.clear(node.outputs)
    for tensor in outputs:
        list.clear(tensor.inputs)
    return Node(
        f"Basic{node.op}InplaceFillWindowCache",
        layer.name,
        attrs={**_defaults(node), **_scale_attributes(quant)},
        inputs=[Variable.empty() if tensor is None else tensor for tensor in inputs],
        outputs=outputs,
    )


def _rewritten(model: Model, old: Tensor, layer: RecurrentLayer, index: int, quant: RecurrentQuant) -> Constant:
    """The integers of W or R, computed when they are written."""
    weight = layer.weight if index == WEIGHT else layer.recurrence
    scale = quant.weight_scale if index == WEIGHT else quant.recurrence_scale

    def integers() -> Array:
        return integer_rows(constant_array(weight), scale, quant.weight_bits)

    return model.rewrite_constant(old, DerivedValues(list(weight.shape), np.dtype(np.int8), integers))


def _bias(model: Model, layer: RecurrentLayer, quant: RecurrentQuant) -> Constant:
    """The int32 bias; zeros where there is none, which the operator does not know."""
    if layer.bias is None:
        directions = int(layer.weight.shape[0])
        zeros = np.zeros((directions, 2 * layer.rows // directions), np.int32)
        return model.add_constant(f"{layer.name}.bias", zeros)
    integers = integer_bias(layer, constant_array(layer.bias), quant)
    return model.rewrite_constant(layer.node.inputs[BIAS], integers)


def _defaults(node: Node) -> dict[str, Any]:
    """The attributes of the layer, what it leaves out written in full."""
    empty = {
        "activation_alpha": AttributeProto.FLOATS,
        "activation_beta": AttributeProto.FLOATS,
        "activations": AttributeProto.STRINGS,
    }
    attrs: dict[str, Any] = {name: AttributeProto(name=name, type=kind) for name, kind in empty.items()}
    attrs.update({"clip": _NO_CLIP, "direction": "forward"})
    attrs.update({"input_forget": 0} if node.op == "LSTM" else {})
    return {**attrs, **node.attrs}


def _scale_attributes(quant: RecurrentQuant) -> dict[str, Any]:
    attrs: dict[str, Any] = {}
    for letter, tensor in (("x", quant.data), ("h", quant.hidden)):
        attrs[f"quant_scale_{letter}"] = float(np.float32(1.0) / np.float32(tensor.scale))
        attrs[f"quant_offset_{letter}"] = float(tensor.offset)
        attrs[f"quant_sqrt_mode_{letter}"] = 0
    return {**attrs, "quant_dtype": _GE_TYPES[quant.data.bits]}


@dataclass(frozen=True)
class LowerRecurrent:
    """ONNX's own operator in place of an Ascend one: AscendQuant and AscendAntiQuant before input and initial state,
    weights and bias as the floats that their integers stand for."""

    def run(self, model: Model) -> PassResult:
        """Replace the nodes."""
        editor = Editor(model)
        nodes = [node for node in model.nodes() if node.op in ASCEND_NAMES]
        for node in nodes:
            _lower(model, editor, node)
        editor.commit()
        return PassResult(tuple(node.name for node in nodes))


def _lower(model: Model, editor: Editor, node: Node) -> None:
    op = ASCEND_NAMES[node.op]
    states = _STATES[op]
    data, weight, recurrence = node.inputs[:3]
    given = dict(zip(states, node.inputs[3:], strict=False))
    bias, lengths, _, param, *peepholes = node.inputs[3 + len(states) :]
    first, second = np.split(unpack_dequant_scale(constant_array(param)), 2)
    quants = {letter: _quant_of(node, letter) for letter in "xh"}
    inputs = [Variable.empty() for _ in range(PEEPHOLES + 1)]
    inputs[DATA] = _restored(model, editor, node, data, quants["x"], "")
    inputs[WEIGHT] = _float_weight(model, weight, first / np.float32(quants["x"].scale))
    inputs[RECURRENCE] = _float_weight(model, recurrence, second / np.float32(quants["h"].scale))
    values = bias_values(constant_array(bias), (first, second))
    inputs[BIAS] = model.add_constant(f"{bias.name}.dequantized", values)
    inputs[LENGTHS] = lengths
    for index, tensor in given.items():
        is_quantized = index == HIDDEN and not tensor.is_empty()
        inputs[index] = _restored(model, editor, node, tensor, quants["h"], "_h") if is_quantized else tensor
    inputs[PEEPHOLES : PEEPHOLES + 1] = peepholes
    while inputs[-1].is_empty():
        inputs.pop()
    outputs, attrs, name = list(node.outputs), _own_attributes(node), node.name
    editor.remove(node)
    editor.insert_before(node, [Node(op, name, attrs, inputs, outputs)])


def _quant_of(node: Node, letter: str) -> TensorQuant:
    scale = float(np.float32(1.0) / np.float32(node.attrs[f"quant_scale_{letter}"]))
    bits = next(bits for bits, number in _GE_TYPES.items() if number == node.attrs["quant_dtype"])
    return TensorQuant(scale, int(node.attrs[f"quant_offset_{letter}"]), bits)


def _restored(model: Model, editor: Editor, node: Node, tensor: Tensor, quant: TensorQuant, suffix: str) -> Tensor:
    """`tensor` quantized and brought back."""
    stem = f"{node.name}{suffix}"
    quantizing = quant_node(model, f"{stem}.quant", tensor, quant)
    anti = anti_quant_node(model, stem, quantizing.outputs[0], quant)
    editor.insert_before(node, [quantizing, anti])
    return anti.outputs[0]


def _float_weight(model: Model, integers: Tensor, scale: Array) -> Constant:
    def values() -> Array:
        table = constant_array(integers).astype(np.float32)
        rows = table.reshape(-1, table.shape[-1])
        return np.asarray((rows * per_row(scale, rows.shape[0])[:, None]).reshape(table.shape), np.float32)

    lazy = DerivedValues(list(integers.shape), np.dtype(np.float32), values)
    return model.add_constant(f"{integers.name}.dequantized", lazy)


def _own_attributes(node: Node) -> dict[str, Any]:
    """Without those that quantize, or say what is left out anyway."""
    attrs = {name: value for name, value in node.attrs.items() if not name.startswith("quant_")}
    if attrs.get("clip") == _NO_CLIP:
        del attrs["clip"]
    for name in ("activation_alpha", "activation_beta", "activations"):
        value = attrs.get(name)
        values = [*value.floats, *value.strings] if isinstance(value, AttributeProto) else value
        if not values:
            attrs.pop(name, None)
    return attrs
