"""Recurrent layers: what an LSTM, GRU or RNN with constant weights holds, and how its integers are made.

The rows of both weights count the gates' units: ``direction * gates * hidden`` of them. A layer has one scale per gate
or one per row, for the weight W (read with the input) and for the recurrence weight R (read with the hidden state).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import AttributeProto

from amct_onnx.graph.channels import Channels
from amct_onnx.graph.op_table import OpSpec, resolve_constant, spec_of
from amct_onnx.graph.parts import Constant, Node, Tensor
from amct_onnx.graph.weights import Array
from amct_onnx.passes.quant_params import RecurrentQuant, quantize_bias, quantize_weight

DATA, WEIGHT, RECURRENCE, BIAS, LENGTHS, HIDDEN, CELL, PEEPHOLES = range(8)
"""Inputs of ONNX's recurrent operators; GRU and RNN end with the hidden state."""

_DEFAULT_ACTIVATIONS = {"LSTM": ["sigmoid", "tanh", "tanh"], "GRU": ["sigmoid", "tanh"]}


@dataclass(frozen=True)
class RecurrentLayer:
    """One LSTM, GRU or RNN that can be quantized.

    Attributes:
        node: the node.
        weight: W, [directions, gates * hidden, inputs].
        recurrence: R, [directions, gates * hidden, hidden].
        bias: [directions, 2 * gates * hidden], the halves for W and for R; None when it has none.
        in_body: whether it lies inside a control-flow body.
    """

    node: Node
    weight: Constant
    recurrence: Constant
    bias: Constant | None
    in_body: bool = False

    @property
    def name(self) -> str:
        """The layer's name, which is its key in a record."""
        return str(self.node.name)

    @property
    def op_type(self) -> str:
        """ONNX operator type."""
        return str(self.node.op)

    @property
    def spec(self) -> OpSpec:
        """Its row of the operator table."""
        return spec_of(self.node)

    @property
    def activation(self) -> Tensor:
        """The data input."""
        return self.node.inputs[DATA]

    @property
    def gates(self) -> int:
        """Number of gates over all directions."""
        return self.spec.gates * int(self.weight.shape[0])

    @property
    def rows(self) -> int:
        """Number of rows of each weight over all directions."""
        return int(self.weight.shape[0]) * int(self.weight.shape[1])

    @property
    def states(self) -> tuple[Tensor, ...]:
        """Where hidden states can be seen: the initial one, and all that come out, or else the last."""
        given = [tensor for tensor in (optional_input(self.node, HIDDEN),) if tensor is not None]
        seen = [tensor for tensor in self.node.outputs[:2] if not tensor.is_empty()]
        return (*given, *seen[:1])


def optional_input(node: Node, index: int) -> Tensor | None:
    """An input that may be left out."""
    if index >= len(node.inputs) or node.inputs[index].is_empty():
        return None
    return node.inputs[index]


def recurrent_layer(node: Node, *, in_body: bool) -> RecurrentLayer:
    """The layer that a node is; the rules of its type have been checked."""
    bias = optional_input(node, BIAS)
    weight, recurrence = (resolve_constant(node.inputs[index]) for index in (WEIGHT, RECURRENCE))
    if weight is None or recurrence is None:
        raise TypeError(f"'{node.name}' has no constant weights")
    return RecurrentLayer(node, weight, recurrence, None if bias is None else resolve_constant(bias), in_body)


def ascend_obstacle(layer: RecurrentLayer) -> tuple[str, str] | None:
    """Why the Ascend operators cannot stand for a layer, and the remedy; None when one can.

    There is one for LSTM and one for GRU (with linear_before_reset); both run forward.
    """
    node = layer.node
    if node.op not in _DEFAULT_ACTIVATIONS:
        return f"no Ascend operator stands for a quantized {node.op}", "none; other output forms quantize it"
    attrs = node.attrs
    usual = _activations(node) in ([], _DEFAULT_ACTIVATIONS[node.op])
    limits = (
        (_text(attrs.get("direction", "forward")) != "forward", "it does not run forward only"),
        (bool(attrs.get("layout", 0)), "its batch comes first (layout 1)"),
        (
            not usual or attrs.get("activation_alpha") or attrs.get("activation_beta"),
            "its activations are unusual",
        ),
        ("clip" in attrs, "it clips its gates"),
        (bool(attrs.get("input_forget", 0)), "it couples input and forget gate"),
        (optional_input(node, PEEPHOLES) is not None, "it has peepholes"),
        (node.op == "GRU" and not attrs.get("linear_before_reset", 0), "its linear_before_reset is 0"),
    )
    broken = next((reason for applies, reason in limits if applies), None)
    if broken is None:
        return None
    remedy = "leave out the ascend form, and the others quantize it; or export it within these limits"
    return f"{broken}, which the Ascend operator for {node.op} does not know", remedy


def _activations(node: Node) -> list[str]:
    given = node.attrs.get("activations", [])
    names = given.strings if isinstance(given, AttributeProto) else given
    return [_text(name).lower() for name in names]


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


def per_row(scale: NDArray[np.float32], rows: int) -> NDArray[np.float32]:
    """Scales of gates, or of rows, as one per row: float32 [rows]."""
    return np.repeat(scale, rows // scale.size)


def weight_rows(weight: Array, scales: int) -> Array:
    """A weight [directions, gates * hidden, columns] as [scales, values under that scale]."""
    return weight.reshape(scales, -1)


def integer_rows(weight: Array, scale: NDArray[np.float32], bits: int) -> NDArray[np.int8]:
    """Integers of W or R, shape of `weight`."""
    table = weight.reshape(-1, weight.shape[-1])
    channels = Channels(table.shape, (0,))
    return quantize_weight(table, per_row(scale, table.shape[0]), channels, bits).reshape(weight.shape)


def integer_bias(layer: RecurrentLayer, bias: Array, quant: RecurrentQuant) -> NDArray[np.int32]:
    """Both halves of the bias on the grids of their accumulators: int32 [directions, 2 * gates * hidden].

    Raises:
        RecordError: a value does not fit int32.
    """
    scales = [per_row(scale, layer.rows) for scale in quant.accumulator_scales]
    names = (("scale_w", "scale_d"), ("scale_r", "scale_h"))
    halves = [quantize_bias(layer.name, *given) for given in zip(bias_halves(bias), scales, names, strict=True)]
    return joined_halves(halves, bias.shape)


def bias_halves(bias: Array) -> tuple[Array, Array]:
    """What a bias [directions, 2 * gates * hidden] adds to each row, for W and for R: [rows] each."""
    halves = bias.reshape(bias.shape[0], 2, -1)
    return halves[:, 0].reshape(-1), halves[:, 1].reshape(-1)


def joined_halves(halves: Sequence[NDArray[Any]], shape: tuple[int, ...]) -> NDArray[Any]:
    """Inverse of :func:`bias_halves`."""
    return np.stack([half.reshape(shape[0], -1) for half in halves], axis=1).reshape(shape)


def bias_values(integers: NDArray[np.int32], scales: Sequence[NDArray[np.float32]]) -> NDArray[np.float32]:
    """What the integers of a bias stand for: float32, shape of `integers`."""
    halves = [
        half * per_row(scale, half.size).astype(np.float64)
        for half, scale in zip(bias_halves(integers), scales, strict=True)
    ]
    return joined_halves(halves, integers.shape).astype(np.float32)
