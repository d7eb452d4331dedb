"""Make one node of two that multiply and shift by constants, where no layer takes them in."""

from __future__ import annotations

import math
from collections.abc import Container
from dataclasses import dataclass

import numpy as np

from amct_onnx.graph.edit import Editor, replace_input, replace_output
from amct_onnx.graph.model import Model, constant_array
from amct_onnx.graph.op_table import known_constant, resolve_constant
from amct_onnx.graph.parts import Constant, Node
from amct_onnx.graph.weights import Array
from amct_onnx.passes.affine import Affine, AffineReader, Layout, broadcasts, constant_operand, data_operand, is_norm
from amct_onnx.passes.base import PassResult
from amct_onnx.passes.tensor_facts import rank_and_channels

_LARGEST = 1 << 16
"""Constants beyond this many values are no scales or shifts of channels, and stay unread."""

_PRODUCTS, _SUMS = ("Mul", "Div"), ("Add", "Sub")


@dataclass(frozen=True)
class MergeAffine:
    """Two affine nodes in a row become one: constants only, and the second the single reader of the first.

    A BatchNormalization with another, or with Mul, Div, Add or Sub per channel, becomes one BatchNormalization: for
    ``factor * x + shift`` together, ``gamma' = factor * sqrt(var + eps)`` and ``beta' = shift + factor * mean``. Mul
    and Div become one Mul, Add and Sub one Add. Computed in float64.

    Attributes:
        skip: names of nodes to leave alone.
        arithmetic: whether Mul, Div, Add and Sub count.
    """

    skip: Container[str] = ()
    arithmetic: bool = True

    def run(self, model: Model) -> PassResult:
        """Merge wherever the rule fits; of a chain everything."""
        editor = Editor(model)
        reader = AffineReader.of(model, arithmetic=self.arithmetic)
        merged: dict[str, tuple[str, ...]] = {}
        withheld: list[str] = []
        for second in model.graph.nodes:
            first = _first_of_pair(reader, editor, second)
            merge = None if first is None else _plan(reader, first, second)
            if first is None or merge is None:
                continue
            if first.name in self.skip or second.name in self.skip:
                withheld.append(first.name)
                continue
            members = (*merged.pop(first.name, (first.name,)), second.name)
            kept = merge.into
            _join(editor, first, second, kept)
            merge.set_values(model)
            merged[kept.name] = (kept.name, *(name for name in members if name != kept.name))
        editor.commit()
        return PassResult(tuple(merged), (), merged, tuple(withheld))


@dataclass(frozen=True)
class _IntoNorm:
    """The one BatchNormalization that two nodes become."""

    into: Node
    gamma: Array
    beta: Array

    def set_values(self, model: Model) -> None:
        for index, values in ((1, self.gamma), (2, self.beta)):
            replace_input(self.into, index, model.rewrite_constant(self.into.inputs[index], values))


@dataclass(frozen=True)
class _IntoArithmetic:
    """The one Mul or Add that two nodes become."""

    into: Node
    op: str
    index: int
    values: Array

    def set_values(self, model: Model) -> None:
        node = self.into
        replace_input(node, self.index, model.rewrite_constant(node.inputs[self.index], self.values))
        if node.op != self.op:
            # It is another node than the source's, whose proto would bring its operator back.
            node.op, node.origin = self.op, None


def _first_of_pair(reader: AffineReader, editor: Editor, second: Node) -> Node | None:
    data = data_operand(second) if is_norm(second) or reader.arithmetic else None
    if data is None or len(data.outputs) != 1 or not data.inputs:
        return None
    first = data.inputs[0]
    before = data_operand(first)
    is_pair = before is not None and reader.is_candidate(first, before) and reader.is_candidate(second, data)
    is_private = not editor.is_output(data) and not editor.is_body_output(data)
    return first if is_pair and is_private else None


def _plan(reader: AffineReader, first: Node, second: Node) -> _IntoNorm | _IntoArithmetic | None:
    if is_norm(first) or is_norm(second):
        return _into_norm(reader, first, second)
    for op, kinds in (("Mul", _PRODUCTS), ("Add", _SUMS)):
        if first.op in kinds and second.op in kinds:
            return _into_arithmetic(op, first, second)
    return None


def _into_norm(reader: AffineReader, first: Node, second: Node) -> _IntoNorm | None:
    norm = first if is_norm(first) else second
    gamma, data = resolve_constant(norm.inputs[1]), data_operand(first)
    if gamma is None or data is None or len(gamma.shape) != 1:
        return None
    rank, _ = rank_and_channels(data)
    if rank is None and not all(is_norm(node) or _is_scalar(node) for node in (first, second)):
        return None
    # One value fits any rank that a BatchNormalization takes, and two is the least.
    layout = Layout(int(gamma.shape[0]), (rank or 2) - 2, rank or 2)
    if layout.behind < 0 or broadcasts(first, data, layout):
        return None
    before, behind = reader.read(first, data, layout), reader.read(second, first.outputs[0], layout)
    if isinstance(before, str) or isinstance(behind, str):
        return None
    return _as_norm(norm, before.then(behind))


def _as_norm(norm: Node, both: Affine) -> _IntoNorm | None:
    mean, var = (constant_array(known_constant(tensor)).astype(np.float64) for tensor in norm.inputs[3:5])
    with np.errstate(over="ignore", invalid="ignore"):
        gamma = (both.factor * np.sqrt(var + float(norm.attrs.get("epsilon", 1e-5)))).astype(np.float32)
        beta = (both.shift + both.factor * mean).astype(np.float32)
    return _IntoNorm(norm, gamma, beta) if np.isfinite(gamma).all() and np.isfinite(beta).all() else None


def _is_scalar(node: Node) -> bool:
    data = data_operand(node)
    operand = None if data is None else constant_operand(node, data)
    constant = None if operand is None else resolve_constant(operand)
    return constant is not None and math.prod(constant.shape) == 1


def _into_arithmetic(op: str, first: Node, second: Node) -> _IntoArithmetic | None:
    index, other = _operand(first), _operand(second)
    if index is None or other is None:
        return None
    constants = [known_constant(first.inputs[index]), known_constant(second.inputs[other])]
    shapes = [tuple(int(size) for size in constant.shape) for constant in constants]
    largest = max(math.prod(shape) for shape in shapes)
    if largest > _LARGEST or any(constant.dtype != np.float32 for constant in constants):
        return None
    if math.prod(np.broadcast_shapes(*shapes)) > largest:
        return None
    with np.errstate(all="ignore"):
        parts = [_part(first, constants[0]), _part(second, constants[1])]
        exact = parts[0] * parts[1] if op == "Mul" else parts[0] + parts[1]
        values = np.asarray(exact, np.float32)
    is_lost = op == "Mul" and bool(np.any((np.abs(values) < np.finfo(np.float32).tiny) & (exact != 0)))
    return None if is_lost or not np.isfinite(values).all() else _IntoArithmetic(first, op, index, values)


def _part(node: Node, constant: Constant) -> Array:
    """What the node multiplies by or adds."""
    values = constant_array(constant).astype(np.float64)
    if node.op == "Div":
        return np.asarray(1.0 / values)
    return -values if node.op == "Sub" else values


def _operand(node: Node) -> int | None:
    """Index of the constant; None where it is what the data is subtracted from."""
    index = 1 if node.inputs[0] is data_operand(node) else 0
    return None if node.op == "Sub" and index == 0 else index


def _join(editor: Editor, first: Node, second: Node, kept: Node) -> None:
    """Let `kept` read what `first` reads and make what `second` makes; the other one goes."""
    data, output = data_operand(first), second.outputs[0]
    if kept is first:
        editor.remove(second)
        replace_output(first, 0, output)
    else:
        editor.remove(first)
        replace_input(second, 0, data)
