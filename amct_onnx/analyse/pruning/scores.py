"""What units are worth by what their readers make of them on calibration data."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from amct_onnx.analyse.pruning.elimination import ReaderView
from amct_onnx.analyse.pruning.importance import Scores


def energy(views: Sequence[ReaderView]) -> Scores:
    """Variance of each unit times its readers' squared weights, as a share of the variance of what they give out."""
    return _added_up(views, [np.diag(view.covariance) * np.square(view.weight).sum(axis=0) for view in views])


def taylor(views: Sequence[ReaderView]) -> Scores:
    """First-order Taylor expansion of the readers' reconstruction loss, as a share of the variance of their results.

    With a mask m over the units, a reader loses ``L(m) = E|W diag(m - 1) x|^2``. L and its gradient are zero for the
    whole model (m = 1), so the gradient is taken half-way to nothing, at m = 1/2. There ``dL/dm_u = -cov(y_u, y)``,
    where y_u is what unit u adds to the reader's results y; as L is quadratic, these steps of all units add up to L(0)
    exactly. The same comes from ``E[x_u dC/dx_u]`` (Molchanov et al. 2017, 2019) with the cost ``C = |y|^2 / 2``,
    values centred. Other than by variance, a unit whose part others undo counts less.
    """
    return _added_up(views, [((view.weight @ view.covariance) * view.weight).sum(axis=0) for view in views])


def _added_up(views: Sequence[ReaderView], per_column: Sequence[Scores]) -> Scores:
    """Absolute sums over the columns of each unit, added up over readers as shares of their results' variance."""
    total = np.zeros(len(views[0].columns))
    for view, values in zip(views, per_column, strict=True):
        variance = float(np.sum((view.weight @ view.covariance) * view.weight))
        own = np.abs([values[columns].sum() for columns in view.columns])
        total += view.readers * own / variance if variance > 0 else 0.0
    return total
