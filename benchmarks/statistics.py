"""Scores with their intervals. Every interval is at 95 %; nothing here knows models."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Z = 1.959964
RESAMPLES = 2000
SEED = 95


@dataclass(frozen=True)
class Figure:
    """A measured value with its 95 % interval and the number of independent items behind it."""

    value: float
    low: float
    high: float
    n: int

    def __str__(self) -> str:
        """Give value, interval and n, ready for a table."""
        return f"{self.value:.4f} [{self.low:.4f}, {self.high:.4f}] n={self.n}"


def proportion(hits: NDArray[np.bool_]) -> Figure:
    """Return the share of hits among independent items with Wilson's interval."""
    n, share = len(hits), float(np.mean(hits))
    scale = 1 + Z**2 / n
    centre = (share + Z**2 / (2 * n)) / scale
    half = Z * math.sqrt(share * (1 - share) / n + Z**2 / (4 * n**2)) / scale
    return Figure(share, max(0.0, centre - half), min(1.0, centre + half), n)


def clustered_proportion(hits: NDArray[np.bool_], clusters: NDArray[np.int64]) -> Figure:
    """Return the share of hits among items that come in clusters, such as crops of one picture.

    The interval is the hull of Wilson's, which takes the items for independent, and of a bootstrap over whole clusters,
    which collapses to a point when every item is a hit.
    """
    plain = proportion(hits)
    members = [hits[clusters == cluster] for cluster in np.unique(clusters)]
    low, high = bootstrap(len(members), lambda chosen: float(np.concatenate([members[i] for i in chosen]).mean()))
    return Figure(plain.value, min(low, plain.low), max(high, plain.high), plain.n)


def paired_difference(hits: NDArray[np.bool_], reference: NDArray[np.bool_]) -> Figure:
    """Return how much the share of hits differs from ``reference`` on the same items (Agresti and Min's interval).

    Half an item is added to each kind of disagreement, so that "no disagreement seen" still has a width.
    """
    n = len(hits)
    gained, lost = int(np.sum(hits & ~reference)), int(np.sum(~hits & reference))
    centre = (gained - lost) / (n + 2)
    half = Z * math.sqrt(gained + lost + 1 - (gained - lost) ** 2 / (n + 2)) / (n + 2)
    return Figure((gained - lost) / n, centre - half, centre + half, n)


def bootstrap(n: int, statistic: Callable[[NDArray[np.int64]], float]) -> tuple[float, float]:
    """Return the percentile interval of ``statistic`` over seeded resamples of ``n`` items, given as indices."""
    generator = np.random.default_rng(SEED)
    values = [statistic(generator.integers(0, n, n)) for _ in range(RESAMPLES)]
    low, high = np.percentile(values, [2.5, 97.5])
    return float(low), float(high)
