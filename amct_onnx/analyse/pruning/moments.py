"""First and second moments of what layers read, streamed: memory does not grow with the data."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from amct_onnx.graph.weights import Array

Matrix = NDArray[np.float64]


@dataclass
class Moments:
    """Sums over rows x [columns] and results y [results] of one group of a layer.

    Attributes:
        rows: number of rows.
        x, y: sums.
        xx: sum of ``x x^T``.
        yx: sum of ``y x^T``.
        yy: sum of squares of each y.
    """

    rows: int = 0
    x: Matrix = field(default_factory=lambda: np.zeros(0))
    y: Matrix = field(default_factory=lambda: np.zeros(0))
    xx: Matrix = field(default_factory=lambda: np.zeros((0, 0)))
    yx: Matrix = field(default_factory=lambda: np.zeros((0, 0)))
    yy: Matrix = field(default_factory=lambda: np.zeros(0))

    def update(self, rows: Array, results: Array) -> None:
        """Take in some rows [n, columns] and their results [n, results]; those that are not finite are left out."""
        finite = np.isfinite(rows).all(axis=1) & np.isfinite(results).all(axis=1)
        x, y = rows[finite].astype(np.float64), results[finite].astype(np.float64)
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


def ridge_fit(moments: Moments, weight: Matrix, ridge: float) -> tuple[Matrix, Matrix]:
    """Weight and bias of least squared error ``|y - W x - b|^2 + ridge' |W - weight|^2``, in closed form.

    Args:
        moments: of rows and the results that are wanted.
        weight: [results, columns], which the fit stays near to where the data says little.
        ridge: strength, as a share of the columns' mean variance.

    Returns:
        Weight [results, columns] and bias [results].
    """
    covariance = moments.covariance
    strength = ridge * max(float(np.trace(covariance)) / max(1, len(covariance)), np.finfo(np.float64).tiny)
    left = covariance + strength * np.eye(len(covariance))
    change = np.linalg.solve(left, (moments.cross_covariance - weight @ covariance).T).T
    fitted = weight + change
    return fitted, moments.mean_y - fitted @ moments.mean_x
