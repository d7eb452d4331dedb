"""Nodes that multiply and shift each channel by constants, read as ``factor * x + shift``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from amct_onnx.graph.model import Model, constant_array
from amct_onnx.graph.op_table import is_standard, known_constant, resolve_constant
from amct_onnx.graph.parts import Constant, Node, Tensor
from amct_onnx.graph.weights import Array
from amct_onnx.passes.tensor_facts import rank_and_channels

BROADCAST_OPSET = 7
"""From this operator set on constants broadcast as in numpy, and BatchNormalization means inference by default."""

LARGEST_FACTOR = 2.0**64
"""Beyond this a product with ordinary weights may leave float32."""

_ARITHMETIC = frozenset({"Mul", "Div", "Add", "Sub"})


@dataclass(frozen=True)
class Affine:
    """``factor * x + shift`` per channel; both float64, of one value or one per channel."""

    factor: Array
    shift: Array

    def then(self, later: Affine) -> Affine:
        """This one, and `later` on its result: ``f2 * (f1 * x + s1) + s2``."""
        return Affine(self.factor * later.factor, self.shift * later.factor + later.shift)

    @property
    def scales(self) -> bool:
        """Whether any channel is multiplied."""
        return bool(np.any(self.factor != 1.0))

    @property
    def shifts(self) -> bool:
        """Whether anything is added to any channel."""
        return bool(np.any(self.shift != 0.0))

    @property
    def is_sound(self) -> bool:
        """Whether all values are finite, as float32 as well."""
        limit = float(np.finfo(np.float32).max)
        with np.errstate(invalid="ignore"):
            return bool(np.all(np.abs(self.factor) <= LARGEST_FACTOR) and np.all(np.abs(self.shift) <= limit))


IDENTITY = Affine(np.ones(1), np.zeros(1))


@dataclass(frozen=True)
class Layout:
    """Where the channels of a tensor lie.

    Attributes:
        channels: how many there are.
        behind: number of axes behind the channel axis.
        rank: number of axes, None when unknown.
    """

    channels: int
    behind: int
    rank: int | None

    def takes(self, shape: Sequence[int]) -> bool:
        """Whether a constant of this shape holds one value (per channel) and leaves the tensor's shape as it is."""
        if len(shape) > (self.behind + 1 if self.rank is None else self.rank):
            return False
        axis = len(shape) - 1 - self.behind
        return all(size == 1 or (index == axis and size == self.channels) for index, size in enumerate(shape))


@dataclass(frozen=True)
class AffineReader:
    """Reads the affine nodes of one model.

    Attributes:
        opset: version of the default operator set.
        arithmetic: whether Mul, Div, Add and Sub count; their constants broadcast otherwise before operator set 7.
        in_bodies: ``id`` of the nodes that lie in control-flow bodies.
    """

    opset: int
    arithmetic: bool
    in_bodies: frozenset[int]

    @classmethod
    def of(cls, model: Model, *, arithmetic: bool = True) -> AffineReader:
        """The reader for `model`."""
        return cls(model.opset, arithmetic and model.opset >= BROADCAST_OPSET, frozenset(model.body_node_ids()))

    def is_candidate(self, node: Node, data: Tensor) -> bool:
        """Whether `node` is a BatchNormalization of `data`, or arithmetic on it and a constant."""
        if is_norm(node):
            return node.inputs[0] is data
        return self.arithmetic and constant_operand(node, data) is not None

    def read(self, node: Node, data: Tensor, layout: Layout) -> Affine | str:
        """What a candidate does to `data`, or why that is no affine map per channel."""
        if id(node) in self.in_bodies:
            return "it lies inside a control-flow body"
        if is_norm(node):
            return self._reason_against_norm(node, layout) or _checked(_norm(node), "its statistics give")
        operand = constant_operand(node, data)
        constant = None if operand is None else resolve_constant(operand)
        if constant is None or not layout.takes(constant.shape):
            return "its constant is not one value per channel"
        if constant.dtype != np.float32:
            return "only float32 is fused"
        return _checked(_arithmetic(node, data, constant), "its constant gives")

    def _reason_against_norm(self, norm: Node, layout: Layout) -> str | None:
        is_default_training = self.opset < BROADCAST_OPSET and not norm.attrs.get("is_test", 0)
        if is_default_training or norm.attrs.get("training_mode", 0) or any(not t.is_empty() for t in norm.outputs[1:]):
            return "it is in training mode"
        if not norm.attrs.get("spatial", 1):
            return "it normalizes every position on its own"
        constants = [resolve_constant(tensor) for tensor in norm.inputs[1:5]]
        if any(constant is None for constant in constants):
            return "weights or statistics are computed at run time"
        known = [constant for constant in constants if constant is not None]
        if any(constant.dtype != np.float32 for constant in known):
            return "only float32 is fused"
        if any(list(constant.shape) != [layout.channels] for constant in known):
            return "its statistics are of another length"
        if layout.rank is None:
            return "the number of axes of its data is not known"
        if layout.rank != layout.behind + 2:
            return "it normalizes along another axis"
        return None


def is_norm(node: Node) -> bool:
    """Whether the node is a BatchNormalization."""
    return bool(node.op == "BatchNormalization" and is_standard(node))


def constant_operand(node: Node, data: Tensor) -> Tensor | None:
    """The constant that the node multiplies `data` by, divides it by, adds to it or subtracts; or subtracts it from."""
    if node.op not in _ARITHMETIC or not is_standard(node) or len(node.inputs) != 2:
        return None
    first, second = node.inputs
    if first is data:
        return second if second is not data and resolve_constant(second) is not None else None
    is_affine = second is data and node.op != "Div" and resolve_constant(first) is not None
    return first if is_affine else None


def broadcasts(node: Node, data: Tensor, layout: Layout) -> bool:
    """Whether a candidate's constant may give `data` another shape; False means that it surely does not.

    Where it has fewer axes than the result and one value, it cannot; else the data's channels have to be known.
    """
    operand = constant_operand(node, data)
    constant = None if operand is None else resolve_constant(operand)
    if constant is None or is_norm(node):
        return False
    shape = constant.shape
    if all(size == 1 for size in shape) and len(shape) < (2 if layout.rank is None else layout.rank):
        return False
    return rank_and_channels(data) != (layout.rank, layout.channels)


def data_operand(node: Node) -> Tensor | None:
    """The computed input of a BatchNormalization, or of arithmetic with a constant."""
    if is_norm(node):
        return node.inputs[0]
    return next((tensor for tensor in node.inputs if constant_operand(node, tensor) is not None), None)


def _norm(norm: Node) -> Affine:
    gamma, beta, mean, var = (_values(known_constant(tensor)) for tensor in norm.inputs[1:5])
    with np.errstate(divide="ignore", invalid="ignore"):
        factor = gamma / np.sqrt(var + float(norm.attrs.get("epsilon", 1e-5)))
        return Affine(factor, beta - mean * factor)


def _arithmetic(node: Node, data: Tensor, constant: Constant) -> Affine:
    values = _values(constant)
    zero, one = np.zeros(1), np.ones(1)
    # What is not finite is for the caller to find, and 1 / inf would hide it.
    values = np.where(np.isfinite(values), values, np.nan)
    if node.op == "Mul":
        return Affine(values, zero)
    if node.op == "Div":
        with np.errstate(divide="ignore", invalid="ignore"):
            return Affine(1.0 / values, zero)
    if node.op == "Add":
        return Affine(one, values)
    return Affine(one, -values) if node.inputs[0] is data else Affine(-one, values)


def _values(constant: Constant) -> Array:
    return constant_array(constant).astype(np.float64).reshape(-1)


def _checked(affine: Affine, what: str) -> Affine | str:
    return affine if affine.is_sound else f"{what} values that are not finite or too large"
