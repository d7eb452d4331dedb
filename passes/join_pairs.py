"""A multiplication by a positive number between two pairs needs no kernel: the integers stay, their meaning changes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from amct_onnx.graph.edit import Editor, replace_input
from amct_onnx.graph.model import Model, constant_array
from amct_onnx.graph.op_table import resolve_constant, scalar_constant
from amct_onnx.graph.parts import Node, Tensor
from amct_onnx.passes.base import PassResult


@dataclass(frozen=True)
class JoinScaledPairs:
    """Quantize, dequantize, Mul by one number c > 0, quantize, dequantize becomes quantize and dequantize.

    ``quantize(c * x, s, z) = quantize(x, s / c, z)``, so x is quantized with ``s / c`` and its integers are dequantized
    with ``s``: rounded once instead of twice. Only where each node is the single reader of the one before and nothing
    between leaves the graph.
    """

    def run(self, model: Model) -> PassResult:
        """Join wherever the rule fits."""
        editor = Editor(model)
        in_bodies = model.body_node_ids()
        changed: list[str] = []
        for node in model.graph.nodes:
            found = _find(editor, node) if node.op == "Mul" else None
            if found is None or any(id(member) in in_bodies for member in found.behind):
                continue
            _join(model, editor, node, found)
            changed.append(node.name)
        editor.commit()
        return PassResult(tuple(changed))


@dataclass(frozen=True)
class _Found:
    """The pair before a Mul, the pair behind it, and the factor."""

    before: tuple[Node, Node]
    behind: tuple[Node, Node]
    factor: float


def _find(editor: Editor, mul: Node) -> _Found | None:
    for data, other in (tuple(mul.inputs), tuple(mul.inputs)[::-1]):
        factor = _number(other)
        before = _producer(editor, data, "DequantizeLinear")
        quantize = None if before is None else _producer(editor, before.inputs[0], "QuantizeLinear")
        behind = _reader(editor, mul.outputs[0], "QuantizeLinear")
        dequantize = None if behind is None else _reader(editor, behind.outputs[0], "DequantizeLinear")
        if factor is None or before is None or quantize is None or behind is None or dequantize is None:
            continue
        scale = np.float32(constant_array(resolve_constant(behind.inputs[1])) / np.float32(factor))
        if scale.ndim == 0 and np.finfo(np.float32).tiny <= scale < np.inf:
            return _Found((quantize, before), (behind, dequantize), factor)
    return None


def _number(tensor: Tensor) -> float | None:
    """The positive value of a constant with one element and at most one axis, stored as a float or as an integer."""
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
    return number if 0.0 < number < np.inf else None


def _producer(editor: Editor, tensor: Tensor, op: str) -> Node | None:
    """What makes `tensor`, if it is of this type and all the tensor is for is its one reader."""
    node = tensor.inputs[0] if tensor.inputs else None
    return node if node is not None and node.op == op and _is_private(editor, tensor) else None


def _reader(editor: Editor, tensor: Tensor, op: str) -> Node | None:
    """The one reader of `tensor`, if it is of this type."""
    node = tensor.outputs[0] if _is_private(editor, tensor) else None
    return node if node is not None and node.op == op else None


def _is_private(editor: Editor, tensor: Tensor) -> bool:
    return len(tensor.outputs) == 1 and not editor.is_output(tensor) and not editor.is_body_output(tensor)


def _join(model: Model, editor: Editor, mul: Node, found: _Found) -> None:
    (quantize, before), (behind, dequantize) = found.before, found.behind
    scale, zero_point = behind.inputs[1:3]
    divided = np.asarray(constant_array(resolve_constant(scale)) / np.float32(found.factor), np.float32)
    replace_input(quantize, 1, model.rewrite_constant(quantize.inputs[1], divided, readers=2))
    replace_input(quantize, 2, zero_point)
    # The pair behind takes over the integers; its own names of scale and zero point stay true.
    replace_input(dequantize, 0, quantize.outputs[0])
    operands = list(mul.inputs)
    for node in (before, mul, behind):
        editor.remove(node)
    for tensor in operands:
        if tensor.inputs and not tensor.outputs and tensor.inputs[0].op == "DequantizeLinear":
            editor.remove(tensor.inputs[0])
