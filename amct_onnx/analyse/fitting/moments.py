"""First and second moments of what layers read, streamed: memory does not grow with the data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from amct_onnx.graph.weights import Array

Matrix = NDArray[np.float64]

RIDGE = 1e-2
"""How strongly a fit stays near the weights that were there."""
_DEAD = 1e-9
"""Columns with less than this share of the mean variance carry nothing."""


LARGEST = 2.0**500
"""Squares of larger values, which only float64 holds, leave no room for sums of them: they are as good as infinite."""


@dataclass
class Moments:
    """Sums over rows x [columns] and results y [results] of one group of a layer.

    Attributes:
        rows: number of rows.
        x, y: sums.
        xx: sum of ``x x^T``.
        yx: sum of ``y x^T``.
        yy: sum of squares of each y.
        left_out: number of rows that held a value that is not finite.
        first_left_out: in which feed the first of them was, as messages name it.
    """

    rows: int = 0
    x: Matrix = field(default_factory=lambda: np.zeros(0))
    y: Matrix = field(default_factory=lambda: np.zeros(0))
    xx: Matrix = field(default_factory=lambda: np.zeros((0, 0)))
    yx: Matrix = field(default_factory=lambda: np.zeros((0, 0)))
    yy: Matrix = field(default_factory=lambda: np.zeros(0))
    left_out: int = 0
    first_left_out: str = ""

    def update(self, rows: Array, results: Array, feed: str = "") -> None:
        """Take in some rows [n, columns] and their results [n, results] of one feed; those not finite are left out."""
        x, y = rows.astype(np.float64), results.astype(np.float64)
        finite = (np.abs(x) < LARGEST).all(axis=1) & (np.abs(y) < LARGEST).all(axis=1)
        if not finite.all():
            self.left_out += int((~finite).sum())
            self.first_left_out = self.first_left_out or feed
            x, y = x[finite], y[finite]
        if not self.rows:
            self.x, self.y = np.zeros(x.shape[1]), np.zeros(y.shape[1])
            self.xx, self.yx = np.zeros((x.shape[1], x.shape[1])), np.zeros((y.shape[1], x.shape[1]))
            self.yy = np.zeros(y.shape[1])
        self.rows += len(x)
        self.x += x.sum(axis=0)
        self.y += y.sum(axis=0)
        self.xx += x.T @ x
        self.yx += y.T @ x
        self.yy += np.square(y).sum(axis=0)

    def restricted(self, columns: NDArray[np.bool_], results: NDArray[np.bool_]) -> Moments:
        """The same of some columns and results alone."""
        return Moments(
            self.rows,
            self.x[columns],
            self.y[results],
            self.xx[np.ix_(columns, columns)],
            self.yx[np.ix_(results, columns)],
            self.yy[results],
        )

    @property
    def mean_x(self) -> Matrix:
        """Mean of each column."""
        return self.x / max(1, self.rows)

    @property
    def mean_y(self) -> Matrix:
        """Mean of each result."""
        return self.y / max(1, self.rows)

    @property
    def covariance(self) -> Matrix:
        """Of the columns: [columns, columns]."""
        return self.xx / max(1, self.rows) - np.outer(self.mean_x, self.mean_x)

    @property
    def cross_covariance(self) -> Matrix:
        """Of results with columns: [results, columns]."""
        return self.yx / max(1, self.rows) - np.outer(self.mean_y, self.mean_x)

    @property
    def result_variance(self) -> Matrix:
        """Of each result."""
        return self.yy / max(1, self.rows) - np.square(self.mean_y)

    @property
    def about_zero(self) -> Moments:
        """The same sums with the means taken as zero, for a fit without bias: its covariance is the mean product."""
        return replace(self, x=np.zeros_like(self.x), y=np.zeros_like(self.y))

    def penalty(self, ridge: float, *, floor: float = 0.0) -> Matrix:
        """What is added to the covariance's diagonal, so that a few samples are not believed too much: [columns].

        With fewer rows than columns a covariance says little of how columns hang together, so a share ``ridge +
        columns / rows`` of its variance is added to each.

        Args:
            ridge: least share.
            floor: share of the mean variance that every column counts for at least, since what hardly varies here may
                vary in other data; not for those that do not vary at all.
        """
        variances = np.diag(self.covariance)
        mean = max(float(variances.mean()) if variances.size else 0.0, np.finfo(np.float64).tiny)
        share = ridge + len(variances) / max(1, self.rows)
        missing = np.where(variances > _DEAD * mean, np.maximum(0.0, floor * mean - variances), 0.0)
        return np.asarray(share * np.maximum(variances, ridge * mean) + missing)


def about_common_bias(parts: Sequence[Moments], weights: Sequence[Matrix], *, ridge: float) -> list[Moments]:
    """Sums about zero of parts whose results have a bias in common, with the bias of least error as their mean.

    With S the mean product of a part's rows plus the penalty D, the weight of least error for a bias b is
    ``W = A - b v^T``, ``A = (mean of y x^T + W_0 D) S^-1`` and ``v = S^-1 mean_x``; setting the derivative of the error
    of all parts by b to zero gives ``b = sum(mean_y - A mean_x) / sum(1 - v^T mean_x)``.

    Args:
        parts: the parts, of as many results each.
        weights: what their fit stays near to, [results, columns] each.
        ridge: strength of the penalty, see :func:`ridge_fit`.
    """
    above, below = np.zeros(len(parts[0].y)), 0.0
    for part, weight in zip(parts, weights, strict=True):
        whole = part.about_zero
        penalty = whole.penalty(ridge)
        inverse_x = np.linalg.solve(whole.covariance + np.diag(penalty), part.mean_x)
        above += part.mean_y - (whole.cross_covariance + weight * penalty) @ inverse_x
        below += 1 - float(inverse_x @ part.mean_x)
    return [_about(part, above / below) for part in parts]


def _about(part: Moments, bias: Matrix) -> Moments:
    """Sums whose mean of x is zero, and of y a bias."""
    return replace(
        part,
        x=np.zeros_like(part.x),
        y=part.rows * bias,
        yx=part.yx - np.outer(bias, part.x),
        yy=part.yy - 2 * bias * part.y + 2 * part.rows * np.square(bias),
    )


def lost_share(parts: Sequence[Moments], weights: Sequence[Matrix]) -> float:
    """Share of the variance of all results that weights do not give, with the bias of least error.

    Args:
        parts: of each group of a layer; about zero where the layer has no bias.
        weights: [results, columns] of each group.
    """
    lost = whole = 0.0
    for part, weight in zip(parts, weights, strict=True):
        given = 2 * (weight * part.cross_covariance).sum() - ((weight @ part.covariance) * weight).sum()
        whole += float(part.result_variance.sum())
        lost += float(part.result_variance.sum() - given)
    return max(0.0, lost / whole) if whole > 0 else 0.0


def ridge_fit(moments: Moments, weight: Matrix, ridge: float) -> tuple[Matrix, Matrix]:
    """Weight and bias of least squared error ``|y - W x - b|^2 + |(W - weight) D|^2``, in closed form.

    Args:
        moments: of rows and the results that are wanted.
        weight: [results, columns], which the fit stays near to where the data says little.
        ridge: strength; D is :meth:`Moments.penalty` of it.

    Returns:
        Weight [results, columns] and bias [results].
    """
    covariance = moments.covariance
    left = covariance + np.diag(moments.penalty(ridge))
    change = np.linalg.solve(left, (moments.cross_covariance - weight @ covariance).T).T
    fitted = weight + change
    return fitted, moments.mean_y - fitted @ moments.mean_x
