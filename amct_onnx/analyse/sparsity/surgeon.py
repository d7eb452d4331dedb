"""Which two of four weights go so that the others can make up for them best.

A layer's squared error around its best weights is ``tr(E H E^T)`` with H the covariance of what it reads. Groups of
four columns are taken one after the other. With F the columns that may still change and ``P = (H_FF)^-1``, taking the
weights S of one row out costs ``w_S (P_SS)^-1 w_S^T``, and the others of F make up for them by
``- w_S (P_SS)^-1 P_SF``: Optimal Brain Surgeon (Hassibi and Stork 1993) for pairs of weights. Once a group is done its
columns are settled for all rows alike, so that one Cholesky factor of H^-1 holds P of every F, as SparseGPT (Frantar
and Alistarh 2023) uses it for single weights.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from amct_onnx.passes.sparsity.candidates import KEPT

Matrix = NDArray[np.float64]
Columns = NDArray[np.int64]


@dataclass(frozen=True)
class Thinned:
    """A layer's weight of which some are zero.

    Attributes:
        weight: [results, columns].
        mask: which of them stay: bool [results, columns].
    """

    weight: Matrix
    mask: NDArray[np.bool_]


def thin_out(weight: Matrix, hessian: Matrix, fours: Sequence[Columns]) -> Thinned:
    """Two of four weights of every row go, and the others make up for them.

    Args:
        weight: [results, columns], of least error.
        hessian: [columns, columns], positive definite.
        fours: the columns of every group; all columns stand in one.
    """
    order = _by_energy(hessian, fours)
    upper = _upper_factor(hessian[np.ix_(order, order)])
    turned = weight[:, order].copy()
    mask = np.ones(turned.shape, np.bool_)
    begin = 0
    for size in _sizes(hessian, fours):
        end = begin + size
        if size > KEPT:
            _take_out(turned, mask, upper, begin, end)
        begin = end
    back = np.argsort(order)
    return Thinned(np.where(mask, turned, 0.0)[:, back], mask[:, back])


def _take_out(weight: Matrix, mask: NDArray[np.bool_], upper: Matrix, begin: int, end: int) -> None:
    """Choose the weights of one group that go, in every row, and change what may still change."""
    own = upper[begin:end, begin:end]
    reach = own.T @ upper[begin:end, begin:]
    local = own.T @ own
    values = weight[:, begin:end]
    choices = list(combinations(range(end - begin), end - begin - KEPT))
    shares = np.zeros((len(choices), *values.shape))
    costs = np.empty((len(choices), len(values)))
    for index, gone in enumerate(choices):
        taken = values[:, gone]
        share = np.linalg.solve(local[np.ix_(gone, gone)], taken.T).T
        shares[index][:, gone] = share
        costs[index] = (share * taken).sum(axis=1)
    best = np.argmin(costs, axis=0)
    weight[:, begin:] -= shares[best, np.arange(len(values))] @ reach
    kept = np.ones((len(choices), end - begin), np.bool_)
    for index, gone in enumerate(choices):
        kept[index, list(gone)] = False
    mask[:, begin:end] = kept[best]
    weight[:, begin:end][~mask[:, begin:end]] = 0.0


def _by_energy(hessian: Matrix, fours: Sequence[Columns]) -> Columns:
    """The columns, group after group, those that carry most first: they find most others to make up for them."""
    return np.concatenate([fours[place] for place in _places(hessian, fours)])


def _sizes(hessian: Matrix, fours: Sequence[Columns]) -> list[int]:
    return [len(fours[place]) for place in _places(hessian, fours)]


def _places(hessian: Matrix, fours: Sequence[Columns]) -> Columns:
    energy = np.array([np.diag(hessian)[columns].sum() for columns in fours])
    return np.argsort(-energy, kind="stable")


def _upper_factor(hessian: Matrix) -> Matrix:
    """Upper U with ``U^T U`` the inverse: the block of rows and columns from any place on is that of what is left."""
    inverse = np.linalg.inv(hessian)
    return np.asarray(np.linalg.cholesky((inverse + inverse.T) / 2).T)


_MOST_WORK = 4e11
"""Multiply-adds of settling a layer's rows one by one, about half a minute; larger layers keep what groups left."""
_MOST_BYTES = 2**28


def settle(thinned: Thinned, weight: Matrix, hessian: Matrix) -> Thinned:
    """The weights that stay, of least error together: a system of equations for every row.

    Args:
        thinned: what stays; of every row as many.
        weight: [results, columns], of least error.
        hessian: [columns, columns], positive definite.
    """
    kept = int(thinned.mask[0].sum()) if len(thinned.mask) else 0
    if kept == 0 or len(weight) * kept**3 / 3 > _MOST_WORK:
        return thinned
    settled = np.zeros_like(weight)
    wanted = weight @ hessian
    rows = max(1, _MOST_BYTES // (8 * kept * kept))
    for begin in range(0, len(weight), rows):
        part = slice(begin, begin + rows)
        places = np.nonzero(thinned.mask[part])[1].reshape(-1, kept)
        systems = hessian[places[:, :, None], places[:, None, :]]
        right = np.take_along_axis(wanted[part], places, axis=1)
        found = np.linalg.solve(systems, right[:, :, None])[:, :, 0]
        np.put_along_axis(settled[part], places, found, axis=1)
    return Thinned(settled, thinned.mask)
