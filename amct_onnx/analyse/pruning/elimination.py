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
from amct_onnx.analyse.pruning.importance import removal_order
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
    """A reader on the way: its inverse covariance and weight, of the columns that are left."""

    def __init__(self, view: ReaderView) -> None:
        scale = _power_of_two(view.covariance.diagonal() + view.penalty)
        self._inverse = np.linalg.inv(view.covariance / scale + np.diag(view.penalty / scale))
        self._weight = view.weight
        variance = float(np.sum((view.weight @ (view.covariance / scale)) * view.weight))
        self._share = 1.0 / variance if variance > 0 else 0.0
        self._columns = view.columns
        self._left = np.arange(view.weight.shape[1])

    def costs(self, units: NDArray[np.int64]) -> Matrix:
        """What each of these units costs if it goes next."""
        found = np.zeros(len(units))
        by_size: dict[int, list[int]] = {}
        for place, unit in enumerate(units):
            by_size.setdefault(len(self._columns[unit]), []).append(place)
        for size, places in by_size.items():
            if size:
                columns = np.stack([self._columns[units[place]] for place in places])
                found[places] = self._block_costs(np.searchsorted(self._left, columns))
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

    def remove(self, units: NDArray[np.int64]) -> Matrix:
        """Take the columns of some units out; what each costs when those before it are gone.

        All go in one update: with the Cholesky factor ``L L^T = C^-1_SS`` the squares of row i of ``L^-1 W_S^T`` are
        what column i costs when those before it are gone.
        """
        own = np.searchsorted(self._left, np.concatenate([self._columns[unit] for unit in units]))
        rest = np.delete(np.arange(len(self._left)), own)
        factor = np.linalg.cholesky(self._inverse[np.ix_(own, own)])
        lost = np.linalg.solve(factor, self._weight[:, own].T)
        spread = np.linalg.solve(factor, self._inverse[np.ix_(own, rest)])
        self._left = self._left[rest]
        self._weight = self._weight[:, rest] - lost.T @ spread
        self._inverse = self._inverse[np.ix_(rest, rest)]
        self._inverse -= spread.T @ spread
        ends = np.cumsum([len(self._columns[unit]) for unit in units])
        costs = np.cumsum(np.append(0.0, np.square(lost).sum(axis=1)))[ends]
        return np.asarray(np.diff(costs, prepend=0.0) * self._share)


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
    rounds: list[tuple[NDArray[np.int64], Matrix]] = []
    left = count
    step = max(1, -(-count // _ROUNDS))
    while left:
        taken = min(step, left)
        current = np.full(group.units.size, np.inf)
        units = np.flatnonzero(group.is_free & ~gone)
        current[units] = sum((reader.costs(units) for reader in readers), np.zeros(len(units)))
        chosen = np.sort(
            removal_order(group, np.where(gone, np.inf, current), taken).reshape(taken, -1), axis=0
        ).reshape(-1)
        rounds.append((chosen, _remove(readers, chosen)))
        gone[chosen] = True
        left -= taken
    order, lost = (np.concatenate(parts) for parts in zip(*rounds, strict=True))
    return Elimination(order, np.cumsum(lost))


def eliminate_in_order(order: NDArray[np.int64], views: Sequence[ReaderView]) -> Elimination:
    """What is lost when units go in an order that something else has chosen."""
    return Elimination(order, np.cumsum(_remove([_Reader(view) for view in views], order)))


def _remove(readers: Sequence[_Reader], units: NDArray[np.int64]) -> Matrix:
    """Let units go, one after the other; what each costs."""
    return sum((reader.remove(units) for reader in readers), np.zeros(len(units)))
