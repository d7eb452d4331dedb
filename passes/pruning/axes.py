"""Axes of tensors as products of factors, some of which carry the labels of channels.

A Transpose permutes axes, a Reshape regroups their factors. Splitting a factor that carries labels ties them: of a grid
only whole columns can go.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from amct_onnx.passes.pruning.labels import LabelArray, Labels


@dataclass(frozen=True, eq=False)
class Factor:
    """A part of an axis.

    Attributes:
        size: how many positions it has.
        labels: the channel at each position, int64 [size]; None where it holds no channels.
        is_constant: whether it is as long whatever is fed; always so for one with channels.
    """

    size: int
    labels: LabelArray | None = None
    is_constant: bool = False


Axis = tuple[Factor, ...]
"""The factors of one axis, the slowest first; none for an axis of one position."""

Layout = tuple[Axis, ...]
"""The axes of a tensor."""


def plain_axis(size: int) -> Axis:
    """An axis without channels."""
    return () if size == 1 else (Factor(size),)


def labelled(labels: LabelArray) -> Axis:
    """An axis whose positions have these labels."""
    return (Factor(int(labels.size), labels),)


def plain_layout(shape: Sequence[int]) -> Layout:
    """A tensor without channels."""
    return tuple(plain_axis(size) for size in shape)


def size_of(axis: Axis) -> int:
    """Number of positions."""
    return math.prod(factor.size for factor in axis)


def shape_of(layout: Layout) -> tuple[int, ...]:
    """Sizes of all axes."""
    return tuple(size_of(axis) for axis in layout)


def has_labels(axis: Axis) -> bool:
    """Whether some factor carries labels."""
    return any(factor.labels is not None for factor in axis)


def is_constant(axis: Axis) -> bool:
    """Whether an axis with channels is as long whatever is fed."""
    return has_labels(axis) and all(factor.labels is not None or factor.is_constant for factor in axis)


def labels_of(axis: Axis, labels: Labels) -> LabelArray | None:
    """The label of each position, int64 [size]; None without.

    Where two factors carry labels, no position has one of its own: all but the longest factor are fixed.
    """
    carrying = [index for index, factor in enumerate(axis) if factor.labels is not None]
    if not carrying:
        return None
    kept = max(carrying, key=lambda index: axis[index].size)
    for index in carrying:
        if index != kept:
            _fix(axis[index], labels)
    own = axis[kept].labels
    if own is None:
        return None
    before = math.prod(factor.size for factor in axis[:kept])
    behind = math.prod(factor.size for factor in axis[kept + 1 :])
    return np.tile(np.repeat(own, behind), before)


def _fix(factor: Factor, labels: Labels) -> None:
    if factor.labels is not None:
        labels.fix(factor.labels, "another axis of channels is joined with it")


def regroup(axes: Sequence[Axis], sizes: Sequence[int], labels: Labels) -> list[Axis] | None:
    """The factors of `axes`, in order, as axes of other sizes with the same product.

    Returns:
        The new axes; None where a border cuts through a factor, so that positions cannot be followed.
    """
    if math.prod(map(size_of, axes)) != math.prod(sizes) or 0 in sizes:
        return None
    rest = _joined([factor for axis in axes for factor in axis])
    result: list[Axis] = []
    for size in sizes:
        taken: list[Factor] = []
        missing = size
        while missing > 1:
            if not rest:
                return None
            factor = rest.pop(0)
            if missing % factor.size == 0:
                taken.append(factor)
                missing //= factor.size
            elif factor.size % missing == 0:
                first, second = _split(factor, missing, labels)
                taken.append(first)
                rest.insert(0, second)
                missing = 1
            else:
                return None
        result.append(tuple(taken))
    return result


def _joined(factors: Sequence[Factor]) -> list[Factor]:
    """Neighbours without channels, all of constant length or none, as one: where their border runs does not matter."""
    result: list[Factor] = []
    for factor in factors:
        last = result[-1] if result else factor
        is_alike = last.labels is None and factor.labels is None and last.is_constant == factor.is_constant
        if result and is_alike:
            result[-1] = Factor(last.size * factor.size, is_constant=factor.is_constant)
        else:
            result.append(factor)
    return result


def _split(factor: Factor, size: int, labels: Labels) -> tuple[Factor, Factor]:
    """A factor as two, the first of this size; where it has labels, every column of the grid goes as a whole."""
    rest = factor.size // size
    if factor.labels is None:
        return Factor(size, is_constant=factor.is_constant), Factor(rest, is_constant=factor.is_constant)
    grid = factor.labels.reshape(size, rest)
    for row in grid[1:]:
        labels.unite(grid[0], row)
    return Factor(size, is_constant=True), Factor(rest, grid[0])
