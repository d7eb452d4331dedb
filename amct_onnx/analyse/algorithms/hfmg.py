"""HFMG: cut a histogram where the values it would round to lie closest to it."""

from __future__ import annotations

import numpy as np

from amct_onnx.analyse.algorithms.uniform import FLOAT_EPSILON, scale_and_offset
from amct_onnx.analyse.statistics import Distribution
from amct_onnx.graph.weights import Array

_SMALLEST_STEPS = 100_000
"""Each step of the walk takes in at least one in so many values."""


def hfmg(seen: Distribution, *, bits: int, symmetric: bool, num_of_bins: int = 4096) -> tuple[float, int]:
    """AMCT's HFMG: narrow the window of a histogram from both ends and keep the window with the least loss.

    Each step moves the end that leaves more empty bins behind while it takes in one 100,000th of the values. The loss
    of a window is that of its values rounded to the middles of ``2^bits`` equal cells, values spread evenly within
    their bin; what lies outside counts towards the outermost cells. The first window with the least loss wins.

    Returns:
        Scale (exactly a float32) and offset.
    """
    width = (seen.high - seen.low) / num_of_bins
    if not width > 0:
        return scale_and_offset(seen.low, seen.high, bits=bits, symmetric=symmetric)
    counts = _histogram(seen, num_of_bins)
    best, least = (0, num_of_bins - 1), np.inf
    for window in _windows(counts):
        loss = _loss(counts, *window, width=width, cells=2**bits)
        if loss < least:
            best, least = window, loss
    low, high = seen.low + best[0] * width, seen.low + (best[1] + 1) * width
    return scale_and_offset(low, high, bits=bits, symmetric=symmetric)


def _histogram(seen: Distribution, bins: int) -> Array:
    """Counts of the values in `bins` equal bins on [low, high], float64 [bins]."""
    return np.histogram(seen.values, bins=bins, range=(seen.low, seen.high), weights=seen.weights)[0]


def _windows(counts: Array) -> list[tuple[int, int]]:
    """First and last bin of each window, the full one left out."""
    bins = counts.size
    total = counts.sum()
    step = max(np.ceil(total / _SMALLEST_STEPS), 1)
    upto = np.concatenate(([0.0], np.cumsum(counts)))
    left, right = 0, bins - 1
    windows = []
    while right - left > -(-bins // 4):
        new_left = int(np.searchsorted(upto, upto[left] + step))
        new_right = int(np.searchsorted(upto, upto[right + 1] - step, side="right")) - 2
        if new_left - left > right - new_right:
            left = new_left
        else:
            right = new_right
        windows.append((left, right))
    return windows


def _loss(counts: Array, left: int, right: int, *, width: float, cells: int) -> float:
    """Sum over bins of ``density * integral of (x - middle of its cell)^2``, in units of the bin width cubed."""
    cell = (right - left + 1) / cells
    if cell * width < FLOAT_EPSILON:
        # No scale is that small. Of few distinct values a step may take in so many that nothing is left between them.
        return np.inf
    begin = np.arange(counts.size) - left
    occupied = counts > 0
    begin, weights = begin[occupied], counts[occupied]
    return float(
        np.sum(weights * (_antiderivative(begin + 1.0, cell, cells) - _antiderivative(begin * 1.0, cell, cells)))
    )


def _antiderivative(x: Array, cell: float, cells: int) -> Array:
    """Integral from 0 to x of the squared distance to the middle of the cell that x lies in."""
    index = np.clip(np.floor(x / cell), 0, cells - 1)
    offset = x - (index + 0.5) * cell
    return index * cell**3 / 12 + (offset**3 + (cell / 2) ** 3) / 3
