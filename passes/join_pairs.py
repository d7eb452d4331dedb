"""Arithmetic with one number between two pairs needs no kernel: the integers stay, their meaning changes."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from amct_onnx.graph.edit import Editor, replace_input
from amct_onnx.graph.model import Model
from amct_onnx.graph.op_table import is_standard, resolve_constant, scalar_constant
from amct_onnx.graph.parts import Node, Tensor
from amct_onnx.graph.weights import Array
from amct_onnx.passes.base import PassResult
from amct_onnx.passes.quantizers import quantizer_parameters

_WHOLE = 1e-3
"""Steps that are whole up to this: far below the half step of rounding, above what float32 leaves of a whole one."""


@dataclass(frozen=True)
class JoinPairs:
    """Quantize, dequantize, arithmetic with one number, quantize, dequantize becomes quantize and dequantize.

    ``quantize(c * x + a, s, z) = quantize(x, s / c, z + a / s)``, for a Mul by c > 0 and for an Add of a where
    ``a / s`` is an integer. So x is quantized like that, and its integers are dequantized with s and z: rounded once
    instead of twice. Only where each node is the single reader of the one before and nothing between leaves the graph.
    Several in a row become one. A first pair of the source itself stays: where its range ends is part of the model.
    """

    def run(self, model: Model) -> PassResult:
        """Join wherever the rule fits."""
        editor = Editor(model)
        in_bodies = model.body_node_ids()
        changed: list[str] = []
        for node in model.graph.nodes:
            found = _find(editor, node) if node.op in ("Mul", "Add") and is_standard(node) else None
            if found is None or any(id(member) in in_bodies for member in found.behind):
                continue
            _join(model, editor, node, found)
            changed.append(node.name)
        editor.commit()
        return PassResult(tuple(changed))


@dataclass(frozen=True)
class _Found:
    """The pairs before and behind the arithmetic, and how the first one quantizes to make up for both."""

    before: tuple[Node, Node]
    behind: tuple[Node, Node]
    scale: Array
    zero_point: Array


def _find(editor: Editor, arithmetic: Node) -> _Found | None:
    for data, other in (tuple(arithmetic.inputs), tuple(arithmetic.inputs)[::-1]):
        number = _number(other)
        before = _producer(editor, data, "DequantizeLinear")
        quantize = None if before is None else _producer(editor, before.inputs[0], "QuantizeLinear")
        behind = _reader(editor, arithmetic.outputs[0], "QuantizeLinear")
        dequantize = None if behind is None else _reader(editor, behind.outputs[0], "DequantizeLinear")
        if number is None or before is None or quantize is None or behind is None or dequantize is None:
            continue
        if quantize.origin is not None:
            continue
        quantizers = [quantizer_parameters(entry) for entry in (quantize, before, behind)]
        known = [parameters for parameters in quantizers if parameters is not None]
        wanted = _joined(arithmetic.op, number, *known) if len(known) == len(quantizers) else None
        if wanted is not None:
            return _Found((quantize, before), (behind, dequantize), *wanted)
    return None


_Parameters: TypeAlias = tuple[Array, Array]


def _joined(op: str, number: float, first: _Parameters, second: _Parameters, third: _Parameters) -> _Parameters | None:
    """Scale and zero point of one quantizer for the work of two, None where no zero point fits.

    Args:
        op: Mul or Add.
        number: its constant operand.
        first: parameters of the quantizer before it.
        second: those by which its integers are read; others where pairs were joined before.
        third: parameters of the quantizer behind it.
    """
    (scale, zero_point), limits = third, np.iinfo(third[1].dtype.name)
    factor = float(second[0]) / float(first[0])
    shift = (int(first[1]) - int(second[1])) * float(second[0])
    factor, shift = (factor * number, shift * number) if op == "Mul" else (factor, shift + number)
    steps = shift / float(scale)
    moved = int(zero_point) + round(steps)
    if factor <= 0 or abs(steps - round(steps)) > _WHOLE or not limits.min <= moved <= limits.max:
        return None
    divided = np.asarray(float(scale) / factor, np.float32)
    if not np.finfo(np.float32).tiny <= divided < np.inf:
        return None
    return divided, np.asarray(moved, zero_point.dtype)


def _number(tensor: Tensor) -> float | None:
    """The finite value of a constant with one element and at most one axis, stored as a float or as an integer."""
    producer = tensor.inputs[0] if tensor.inputs else None
    stored = producer.inputs if producer is not None and producer.op == "DequantizeLinear" else [tensor]
    constant = resolve_constant(stored[0])
    values = [scalar_constant(entry) for entry in stored]
    if constant is None or len(constant.shape) > 1 or any(value is None for value in values):
        return None
    if len(stored) == 1:
        number = values[0] or 0.0
    else:
        integer, scale, zero_point = (value or 0.0 for value in values)
        number = (integer - zero_point) * scale
    return number if math.isfinite(number) else None


def _producer(editor: Editor, tensor: Tensor, op: str) -> Node | None:
    """What makes `tensor`, if it is of this type and all the tensor is for is its one reader."""
    node = tensor.inputs[0] if tensor.inputs else None
    return node if node is not None and node.op == op and editor.is_private(tensor) else None


def _reader(editor: Editor, tensor: Tensor, op: str) -> Node | None:
    """The one reader of `tensor`, if it is of this type."""
    node = tensor.outputs[0] if editor.is_private(tensor) else None
    return node if node is not None and node.op == op else None


def _join(model: Model, editor: Editor, arithmetic: Node, found: _Found) -> None:
    (quantize, before), (behind, dequantize) = found.before, found.behind
    for index, values in ((1, found.scale), (2, found.zero_point)):
        replace_input(quantize, index, model.rewrite_constant(quantize.inputs[index], values, readers=2))
    # The pair behind takes over the integers; its own names of scale and zero point stay true.
    replace_input(dequantize, 0, quantize.outputs[0])
    operands = list(arithmetic.inputs)
    for node in (before, arithmetic, behind):
        editor.remove(node)
    for tensor in operands:
        if tensor.inputs and not tensor.outputs and tensor.inputs[0].op == "DequantizeLinear":
            editor.remove(tensor.inputs[0])
