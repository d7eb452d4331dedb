"""Sizes that a model computes from shapes, as far as they are known whatever is fed.

Exporters compute targets of Reshape, bounds of Slice and scales of attention from Shape. What is made of the number of
channels must neither change by accident when channels go, nor keep a number that is no longer true.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import helper

from amct_onnx.graph.model import constant_array
from amct_onnx.graph.op_table import is_standard, resolve_constant
from amct_onnx.graph.parts import Node, Tensor
from amct_onnx.graph.weights import Array
from amct_onnx.passes.pruning.labels import LabelArray

Number = int | float | bool

_MOST = 64
"""Entries; longer tensors are no shapes."""


@dataclass(frozen=True, eq=False)
class Size:
    """One number of a shape, or made of some.

    Attributes:
        value: what it is, whatever is fed; None when that depends on the input.
        channels: labels of the axis of which it is the length; None for anything else.
        counted: labels of all such axes of whose lengths it has been made.
    """

    value: Number | None
    channels: LabelArray | None = None
    counted: tuple[LabelArray, ...] = ()


@dataclass(frozen=True, eq=False)
class Sizes:
    """A small tensor of sizes.

    Attributes:
        entries: a Size each, in the tensor's shape.
        dtype: element type.
    """

    entries: NDArray[Any]
    dtype: np.dtype[Any]

    def values(self) -> Array | None:
        """All of them as an array; None when some are not known."""
        found = [entry.value for entry in self.entries.reshape(-1)]
        if any(value is None for value in found):
            return None
        return np.array(found, self.dtype).reshape(self.entries.shape)

    @property
    def counted(self) -> tuple[LabelArray, ...]:
        """Labels of all axes of whose lengths some entry has been made."""
        return _counted(*self.entries.reshape(-1))


Known = Callable[[Tensor], Sizes | None]
"""The sizes that a tensor holds, when it is known to hold some."""


def sizes_of_axes(axes: Sequence[Size]) -> Sizes:
    """The result of Shape."""
    return Sizes(_array(list(axes), (len(axes),)), np.dtype(np.int64))


def total_size(axes: Sequence[Size]) -> Sizes:
    """The result of Size."""
    return Sizes(_array([_multiplied(axes)], ()), np.dtype(np.int64))


def constant_sizes(tensor: Tensor) -> Sizes | None:
    """A small constant of numbers as sizes."""
    constant = resolve_constant(tensor)
    if constant is None or math.prod(constant.shape) > _MOST or np.dtype(constant.dtype).kind not in "iufb":
        return None
    values = constant_array(constant)
    return Sizes(_array([Size(value) for value in values.reshape(-1).tolist()], values.shape), values.dtype)


def computed_sizes(node: Node, known: Known) -> Sizes | None:
    """What a node makes of sizes; None when it does not, or when they cannot be followed."""
    rule = _RULES.get(node.op) if is_standard(node) else None
    if rule is None:
        return None
    operands = [None if tensor.is_empty() else known(tensor) for tensor in node.inputs]
    is_whole = all(found is not None or tensor.is_empty() for found, tensor in zip(operands, node.inputs, strict=True))
    if not is_whole:
        return None
    try:
        made = rule(node, [found for found in operands if found is not None])
    except (ValueError, IndexError, TypeError, ZeroDivisionError, OverflowError):
        # An illegal or odd computation is the runtime's affair.
        return None
    return None if made is None or made.entries.size > _MOST else made


Rule = Callable[[Node, Sequence[Sizes]], Sizes | None]


def _array(entries: Sequence[Size], shape: Sequence[int]) -> NDArray[Any]:
    result = np.empty(len(entries), object)
    result[:] = entries
    return result.reshape(tuple(shape))


def _numbers(sizes: Sizes) -> Array:
    values = sizes.values()
    if values is None:
        raise ValueError("not known")
    return values


def _axes(node: Node, operands: Sequence[Sizes]) -> list[int]:
    given = node.attrs.get("axes")
    return list(given) if given is not None else _numbers(operands[1]).reshape(-1).tolist()


def _same(_node: Node, operands: Sequence[Sizes]) -> Sizes:
    return operands[0]


def _cast(node: Node, operands: Sequence[Sizes]) -> Sizes:
    dtype = helper.tensor_dtype_to_np_dtype(int(node.attrs["to"]))
    convert = float if dtype.kind == "f" else bool if dtype.kind == "b" else int

    def one(size: Size) -> Size:
        value = None if size.value is None else convert(size.value)
        return Size(value, size.channels if dtype.kind == "i" else None, size.counted)

    return Sizes(_mapped(one, operands[0].entries), dtype)


def _gather(node: Node, operands: Sequence[Sizes]) -> Sizes:
    taken = np.take(operands[0].entries, _numbers(operands[1]), axis=int(node.attrs.get("axis", 0)))
    return Sizes(_as_array(taken), operands[0].dtype)


def _as_array(found: Any) -> NDArray[Any]:
    return found if isinstance(found, np.ndarray) else _array([found], ())


def _slice(node: Node, operands: Sequence[Sizes]) -> Sizes:
    if len(operands) > 1:
        begins, ends, *more = (_numbers(found).reshape(-1).tolist() for found in operands[1:])
    else:
        begins, ends, more = node.attrs["starts"], node.attrs["ends"], []
    if operands[0].entries.ndim != 1 or len(begins) != 1 or len(node.inputs) != len(operands):
        raise ValueError("only vectors are followed")
    step = more[1][0] if len(more) > 1 else 1
    return Sizes(operands[0].entries[begins[0] : ends[0] : step], operands[0].dtype)


def _concat(node: Node, operands: Sequence[Sizes]) -> Sizes:
    joined = np.concatenate([found.entries for found in operands], axis=int(node.attrs["axis"]))
    return Sizes(joined, operands[0].dtype)


def _unsqueeze(node: Node, operands: Sequence[Sizes]) -> Sizes:
    return Sizes(np.expand_dims(operands[0].entries, tuple(_axes(node, operands))), operands[0].dtype)


def _squeeze(node: Node, operands: Sequence[Sizes]) -> Sizes:
    named = "axes" in node.attrs or len(operands) > 1
    axes = tuple(_axes(node, operands)) if named else None
    return Sizes(_as_array(np.squeeze(operands[0].entries, axes)), operands[0].dtype)


def _reshape(_node: Node, operands: Sequence[Sizes]) -> Sizes:
    return Sizes(operands[0].entries.reshape(_numbers(operands[1]).tolist()), operands[0].dtype)


def _fill(node: Node, operands: Sequence[Sizes]) -> Sizes:
    shape = _numbers(operands[0]).tolist()
    # What has as many entries as there are channels loses some with them.
    if math.prod(shape) > _MOST or operands[0].counted:
        raise ValueError("no shape")
    given = node.attrs.get("value")
    value = constant_array(given).reshape(-1) if given is not None else np.zeros(1, np.float32)
    return Sizes(_array([Size(value[0].item())] * math.prod(shape), shape), value.dtype)


def _multiplied(entries: Iterable[Size]) -> Size:
    result = Size(1)
    for entry in entries:
        result = _combined(lambda one, other: one * other, result, entry)
    return result


def _product(node: Node, operands: Sequence[Sizes]) -> Sizes:
    result = _multiplied(operands[0].entries.reshape(-1))
    keeps = node.op == "ReduceProd" and bool(node.attrs.get("keepdims", 1))
    return Sizes(_array([result], (1,) if keeps else ()), operands[0].dtype)


def _where(_node: Node, operands: Sequence[Sizes]) -> Sizes:
    def one(condition: Size, first: Size, second: Size) -> Size:
        if condition.value is None:
            # A free size is compared with -1 by exporters that expand; either way it depends on the input.
            return Size(None, None, _counted(condition, first, second))
        return first if condition.value else second

    return Sizes(_mapped(one, *(found.entries for found in operands)), operands[1].dtype)


def _mapped(function: Callable[..., Size], *arrays: NDArray[Any]) -> NDArray[Any]:
    return _as_array(np.frompyfunc(function, len(arrays), 1)(*arrays))


def _combined(function: Callable[..., Number], *sizes: Size) -> Size:
    values = [size.value for size in sizes]
    value = None if any(found is None for found in values) else function(*values)
    return Size(value, None, _counted(*sizes))


def _counted(*sizes: Size) -> tuple[LabelArray, ...]:
    return tuple({id(labels): labels for size in sizes for labels in size.counted}.values())


def _arithmetic(function: Callable[..., Number], dtype: type | None = None) -> Rule:
    def rule(_node: Node, operands: Sequence[Sizes]) -> Sizes:
        entries = _mapped(lambda *sizes: _combined(function, *sizes), *(found.entries for found in operands))
        return Sizes(entries, operands[0].dtype if dtype is None else np.dtype(dtype))

    return rule


def _quotient(one: Number, other: Number) -> Number:
    is_whole = isinstance(one, int) and isinstance(other, int)
    return math.trunc(one / other) if is_whole else one / other


_RULES: Mapping[str, Rule] = {
    "Identity": _same,
    "Cast": _cast,
    "Gather": _gather,
    "Slice": _slice,
    "Concat": _concat,
    "Unsqueeze": _unsqueeze,
    "Squeeze": _squeeze,
    "Reshape": _reshape,
    "ConstantOfShape": _fill,
    "ReduceProd": _product,
    "Where": _where,
    "Add": _arithmetic(lambda one, other: one + other),
    "Sub": _arithmetic(lambda one, other: one - other),
    "Mul": _arithmetic(lambda one, other: one * other),
    "Div": _arithmetic(_quotient),
    "Mod": _arithmetic(lambda one, other: one % other),
    "Min": _arithmetic(min),
    "Max": _arithmetic(max),
    "Pow": _arithmetic(lambda one, other: one**other),
    "Neg": _arithmetic(lambda one: -one),
    "Abs": _arithmetic(abs),
    "Floor": _arithmetic(lambda one: float(math.floor(one))),
    "Ceil": _arithmetic(lambda one: float(math.ceil(one))),
    "Sqrt": _arithmetic(lambda one: math.sqrt(one)),
    "Reciprocal": _arithmetic(lambda one: 1 / one),
    "Equal": _arithmetic(lambda one, other: one == other, np.bool_),
    "Not": _arithmetic(lambda one: not one),
}
