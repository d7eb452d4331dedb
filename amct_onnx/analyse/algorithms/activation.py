"""Where to cut an activation off: min-max, percentile, IFMR, and least squares over both bounds."""

from __future__ import annotations

import numpy as np

from amct_onnx.analyse.algorithms.hfmg import hfmg
from amct_onnx.analyse.algorithms.uniform import FLOAT_EPSILON, Bounds, fit_into, scale_and_offset, squared_error
from amct_onnx.analyse.statistics import Distribution
from amct_onnx.config import ActivationAlgorithm, ActivationOptions
from amct_onnx.graph.weights import Array


def choose_activation(
    options: ActivationOptions, seen: Distribution, *, bounds: Bounds | None = None
) -> tuple[float, int]:
    """Scale (exactly a float32) and offset for one tensor.

    Args:
        options: algorithm, width, symmetry and the algorithm's parameters.
        seen: what calibration saw.
        bounds: range that the producer can emit; the result does not reach beyond it (asymmetric only).
    """
    if options.clip is not None:
        low = 0.0 if options.fixed_min else options.clip[0]
        return scale_and_offset(low, options.clip[1], bits=options.bits, symmetric=options.symmetric)
    scale, offset = _by_algorithm(options, seen)
    if options.fixed_min:
        known = bounds or Bounds()
        bounds = Bounds(max(known.low, 0.0), max(known.high, 0.0))
    if options.symmetric or bounds is None:
        return scale, offset
    return fit_into(scale, offset, bounds, bits=options.bits)


def _by_algorithm(options: ActivationOptions, seen: Distribution) -> tuple[float, int]:
    bits, symmetric = options.bits, options.symmetric
    if options.algorithm is ActivationAlgorithm.IFMR:
        return ifmr(
            seen,
            bits=bits,
            symmetric=symmetric,
            search=(options.search_start, options.search_end, options.search_step),
            max_percentile=options.max_percentile,
            min_percentile=options.min_percentile,
        )
    if options.algorithm is ActivationAlgorithm.HFMG:
        return hfmg(seen, bits=bits, symmetric=symmetric, num_of_bins=options.num_of_bins)
    functions = {
        ActivationAlgorithm.MSE: least_squares,
        ActivationAlgorithm.MINMAX: min_max,
        ActivationAlgorithm.PERCENTILE: percentile,
    }
    return functions[options.algorithm](seen, bits=bits, symmetric=symmetric)


def min_max(seen: Distribution, *, bits: int, symmetric: bool) -> tuple[float, int]:
    """Cover everything that was seen."""
    return scale_and_offset(seen.low, seen.high, bits=bits, symmetric=symmetric)


def percentile(
    seen: Distribution, *, bits: int, symmetric: bool, high_share: float = 0.9999, low_share: float = 0.9999
) -> tuple[float, int]:
    """Cut off the outermost values: keep `high_share` below the upper and `low_share` above the lower bound."""
    low, high = percentile_range(seen, high_share=high_share, low_share=low_share)
    return scale_and_offset(low, high, bits=bits, symmetric=symmetric)


def percentile_range(seen: Distribution, *, high_share: float, low_share: float) -> tuple[float, float]:
    """The k-th largest and k-th smallest value, ``k = total - int(share * total)``, at least 1."""
    total = seen.total
    cumulative = np.cumsum(seen.counts)

    def rank(share: float) -> int:
        return 1 if 1.0 - share < FLOAT_EPSILON else max(1, total - int(share * total))

    high = seen.values[int(np.searchsorted(cumulative, total - rank(high_share) + 1))]
    low = seen.values[int(np.searchsorted(cumulative, rank(low_share)))]
    is_outermost_high, is_outermost_low = high == seen.values[-1], low == seen.values[0]
    return (seen.low if is_outermost_low else float(low)), (seen.high if is_outermost_high else float(high))


def ifmr(
    seen: Distribution,
    *,
    bits: int,
    symmetric: bool,
    search: tuple[float, float, float] = (0.7, 1.3, 0.01),
    max_percentile: float = 0.999999,
    min_percentile: float = 0.999999,
) -> tuple[float, int]:
    """AMCT's IFMR: start from percentiles and scale the upper bound (both, when symmetric) by the best factor.

    The factors are ``arange(start, end, step)`` in float32; the loss of a factor is the mean squared difference between
    ``round(clip(x) / scale) * scale`` and x. The first smallest loss wins.
    """
    low, high = percentile_range(seen, high_share=max_percentile, low_share=min_percentile)
    low, high = min(low, 0.0), max(high, 0.0)
    if high - low < FLOAT_EPSILON:
        return scale_and_offset(0.0, 0.0, bits=bits, symmetric=symmetric)
    half = 2 ** (bits - 1)
    factors = np.arange(search[0], search[1], search[2], dtype=np.float32).astype(np.float64)
    if symmetric:
        steps = factors * (-low / half if -low > high else high / (half - 1))
        lows, highs = -max(high, -low) * factors, max(high, -low) * factors
    else:
        steps = (high * factors - low) / (2 * half - 1)
        lows, highs = np.full_like(factors, low), high * factors
    losses = [_ifmr_loss(seen, step, (lo, hi)) for step, lo, hi in zip(steps, lows, highs, strict=True)]
    scale = float(np.float32(steps[int(np.argmin(losses))]))
    if scale < FLOAT_EPSILON:
        return 1.0, 0 if symmetric else -half
    offset = 0 if symmetric else -int(np.rint(low / scale)) - half
    return scale, max(-half, min(half - 1, offset))


def _ifmr_loss(seen: Distribution, step: float, window: tuple[float, float]) -> float:
    if step <= 0:
        return float("inf")
    difference = np.rint(np.clip(seen.values, *window) / step) * step - seen.values
    return seen.weighted_sum(difference * difference)


def least_squares(seen: Distribution, *, bits: int, symmetric: bool, grid: int = 64) -> tuple[float, int]:
    """The range whose quantizer has the least squared error, searched over both bounds.

    A grid of bounds is judged by a closed form (what is cut off exactly, what is rounded as ``step^2 / 12``), which
    needs only cumulative moments; the best ones are then judged by quantizing, zero-point rounding included, and the
    winner is refined. Covering everything is always among the candidates, so the result is never worse than min-max.
    """
    # With few levels rounding errors are far from uniform, and the closed form ranks less well.
    keep = 8 if bits >= 8 else 48
    candidates = _coarse(seen, bits=bits, symmetric=symmetric, grid=grid, keep=keep)
    candidates.append((seen.low, seen.high))
    best = _best(seen, candidates, bits=bits, symmetric=symmetric)
    width = 1.0 / grid
    for _ in range(3):
        around = [
            (best[0] * (1 + a * width), best[1] * (1 + b * width)) for a in (-0.5, 0.0, 0.5) for b in (-0.5, 0.0, 0.5)
        ]
        best = _best(seen, [best, *around], bits=bits, symmetric=symmetric)
        width /= 2
    return scale_and_offset(*best, bits=bits, symmetric=symmetric)


def _best(seen: Distribution, ranges: list[tuple[float, float]], *, bits: int, symmetric: bool) -> tuple[float, float]:
    inside = [(max(low, seen.low), min(high, seen.high)) for low, high in ranges]
    errors = [
        squared_error(seen, *scale_and_offset(low, high, bits=bits, symmetric=symmetric), bits=bits)
        for low, high in inside
    ]
    return inside[int(np.argmin(errors))]


def _coarse(seen: Distribution, *, bits: int, symmetric: bool, grid: int, keep: int) -> list[tuple[float, float]]:
    """The `keep` most promising ranges of a grid, by the closed form."""
    shares = np.linspace(1.0 / grid, 1.0, grid)
    low, high = min(seen.low, 0.0), max(seen.high, 0.0)
    if symmetric:
        reach = shares * max(-low, high)
        lows, highs = -reach, reach
    else:
        lows = np.repeat(low * shares if low < 0 else np.zeros(1), grid if high > 0 else 1)
        highs = np.tile(high * shares if high > 0 else np.zeros(1), len(lows) // (grid if high > 0 else 1))
    steps = (highs - lows) / (2**bits - 1)
    cut, inside = _cut_error(seen, lows, highs)
    errors = cut + inside * steps**2 / 12
    best = np.argsort(errors, kind="stable")[:keep]
    return [(float(lows[index]), float(highs[index])) for index in best]


def _cut_error(seen: Distribution, lows: Array, highs: Array) -> tuple[Array, Array]:
    """Squared error of what lies outside each range, and how many values other than zero lie inside."""
    weights = seen.weights
    sums = [np.concatenate(([0.0], np.cumsum(weights * seen.values**power))) for power in range(3)]
    nonzero = np.concatenate(([0.0], np.cumsum(np.where(seen.values == 0, 0.0, weights))))
    left = np.searchsorted(seen.values, lows, side="left")
    right = np.searchsorted(seen.values, highs, side="right")
    below = lows**2 * sums[0][left] - 2 * lows * sums[1][left] + sums[2][left]
    above = (
        highs**2 * (sums[0][-1] - sums[0][right])
        - 2 * highs * (sums[1][-1] - sums[1][right])
        + (sums[2][-1] - sums[2][right])
    )
    return below + above, nonzero[right] - nonzero[left]
