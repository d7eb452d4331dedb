"""Backward elimination: the channel goes whose loss the layers that read it can make up for best.

With covariance C of what a layer reads and its weight W, taking out the columns S and fitting the rest again adds
``tr(W_S (C^-1_SS)^-1 W_S^T)`` to the squared error of its results (the block form of Optimal Brain Surgeon, Hassibi and
Stork 1993). Costs of all readers are shares of the variance of their results, and are added up.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from amct_onnx.analyse.fitting.moments import Matrix
from amct_onnx.analyse.pruning.importance import lowest
from amct_onnx.passes.pruning.groups import Group

_ROUNDS = 24
"""In how many steps the channels go; all costs are taken anew after each."""


@dataclass(frozen=True)
class ReaderView:
    """What one layer, or one group of a convolution, makes of a group's channels.

    Attributes:
        weight: [results, columns].
        covariance: of the columns.
        penalty: what a fit adds to its diagonal.
        columns: the columns that hold each unit: unit -> indexes, empty where it has none.
    """

    weight: Matrix
    covariance: Matrix
    penalty: Matrix
    columns: Sequence[NDArray[np.int64]]


@dataclass(frozen=True)
class Elimination:
    """The order in which units of a group go.

    Attributes:
        order: indexes of units, as many of each block in a row.
        costs: what has been lost when so many are gone, added up over readers as shares of their results' variance.
    """

    order: NDArray[np.int64]
    costs: Matrix


class _Reader:
    """A reader on the way: its inverse covariance and weight without what is gone."""

    def __init__(self, view: ReaderView) -> None:
        scale = _power_of_two(view.covariance.diagonal() + view.penalty)
        self._inverse = np.linalg.inv(view.covariance / scale + np.diag(view.penalty / scale))
        self._weight = view.weight.copy()
        variance = float(np.sum((view.weight @ (view.covariance / scale)) * view.weight))
        self._share = 1.0 / variance if variance > 0 else 0.0
        self._columns = view.columns

    def costs(self, units: NDArray[np.int64]) -> Matrix:
        """What each of these units costs if it goes next."""
        found = np.zeros(len(units))
        by_size: dict[int, list[int]] = {}
        for place, unit in enumerate(units):
            by_size.setdefault(len(self._columns[unit]), []).append(place)
        for size, places in by_size.items():
            if size:
                columns = np.stack([self._columns[units[place]] for place in places])
                found[places] = self._block_costs(columns)
        return found * self._share

    def _block_costs(self, columns: NDArray[np.int64]) -> Matrix:
        weight = self._weight[:, columns]
        if columns.shape[1] == 1:
            diagonal = self._inverse[columns[:, 0], columns[:, 0]]
            return np.asarray(np.square(weight[:, :, 0]).sum(axis=0) / diagonal)
        blocks = self._inverse[columns[:, :, None], columns[:, None, :]]
        middle = np.linalg.inv(blocks)
        gram = np.einsum("rub,ruc->ubc", weight, weight, optimize=True)
        return np.asarray(np.einsum("ubc,ubc->u", gram, middle))

    def remove(self, unit: int) -> None:
        """Take a unit's columns out."""
        own = self._columns[unit]
        if not len(own):
            return
        middle = np.linalg.inv(self._inverse[np.ix_(own, own)])
        right = middle @ self._inverse[own]
        self._weight -= self._weight[:, own] @ right
        self._inverse -= self._inverse[:, own] @ right
        self._inverse[own, own] = 1.0
        self._weight[:, own] = 0.0


def _power_of_two(variances: Matrix) -> float:
    """Near the largest: shares do not depend on the unit of what is read, and no inverse of them leaves float64."""
    return float(np.ldexp(1.0, int(np.frexp(variances.max(initial=0.0))[1])))


def eliminate(group: Group, views: Sequence[ReaderView], count: int) -> Elimination:
    """Let `count` units of every block go, one round after the other.

    Args:
        group: the group.
        views: everything that reads its channels.
        count: how many units per block.
    """
    readers = [_Reader(view) for view in views]
    gone = np.zeros(group.units.size, np.bool_)
    order: list[int] = []
    costs: list[float] = []
    lost, left = 0.0, count
    step = max(1, -(-count // _ROUNDS))
    while left:
        taken = min(step, left)
        current = np.full(group.units.size, np.inf)
        units = np.flatnonzero(group.is_free & ~gone)
        current[units] = sum((reader.costs(units) for reader in readers), np.zeros(len(units)))
        for unit in lowest(group, np.where(gone, np.inf, current), taken):
            lost += _remove(readers, unit)
            gone[unit] = True
            order.append(int(unit))
            costs.append(lost)
        left -= taken
    return Elimination(np.array(order, np.int64), np.array(costs))


def eliminate_in_order(order: NDArray[np.int64], views: Sequence[ReaderView]) -> Elimination:
    """What is lost when units go in an order that something else has chosen."""
    readers = [_Reader(view) for view in views]
    return Elimination(order, np.cumsum([_remove(readers, unit) for unit in order]))


def _remove(readers: Sequence[_Reader], unit: int) -> float:
    """Let a unit go; what that costs."""
    lost = float(sum(reader.costs(np.array([unit]))[0] for reader in readers))
    for reader in readers:
        reader.remove(int(unit))
    return lost
