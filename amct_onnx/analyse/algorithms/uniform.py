"""Scale and offset of uniform quantization from a range, and the error they cause."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from amct_onnx.analyse.statistics import Distribution
from amct_onnx.graph.weights import Array

_HALF_TINY, _HALF_MAX = float(np.finfo(np.float16).tiny), float(np.finfo(np.float16).max)
FLOAT_EPSILON = float(np.finfo(np.float32).eps)


@dataclass(frozen=True)
class Bounds:
    """The range that a tensor's producer can emit at all."""

    low: float = -math.inf
    high: float = math.inf


def scale_and_offset(low: float, high: float, *, bits: int, symmetric: bool) -> tuple[float, int]:
    """Quantizer that covers [low, high] and zero.

    Asymmetric: ``scale = (high - low) / (2^n - 1)``, ``offset = round(-2^(n-1) - low / scale)``. Symmetric: ``scale =
    |high| / (2^(n-1) - 1)``, or ``|low| / 2^(n-1)`` when the negative side is the larger one, ``offset = 0``. A scale
    below the float32 epsilon becomes 1.

    Returns:
        Scale (exactly a float32) and offset.
    """
    low, high = min(low, 0.0), max(high, 0.0)
    half = 2 ** (bits - 1)
    if symmetric:
        scale = float(np.float32(-low / half if -low > high else high / (half - 1)))
        return (1.0, 0) if scale < FLOAT_EPSILON else (scale, 0)
    scale = float(np.float32((high - low) / (2 * half - 1)))
    if scale < FLOAT_EPSILON:
        return 1.0, -half
    offset = int(np.rint(-half - low / scale))
    return scale, max(-half, min(half - 1, offset))


def fit_into(scale: float, offset: int, bounds: Bounds, *, bits: int) -> tuple[float, int]:
    """Narrow a quantizer to what the producer can emit, so that it does the producer's clipping as well.

    Only sides on which the quantizer reaches beyond the bound are moved, and only for asymmetric ones (a symmetric
    quantizer has no freedom to do so on one side). With both bounds in the way the step becomes ``(high - low) /
    2^n``, one step less than the bounds allow, so that rounding the zero point cannot push a level outside.
    """
    qmin, qmax = -(2 ** (bits - 1)), 2 ** (bits - 1) - 1
    low_out, high_out = (qmin - offset) * scale < bounds.low, (qmax - offset) * scale > bounds.high
    if not (low_out or high_out) or bounds.low > 0 or bounds.high < 0:
        return scale, offset
    low, high = max((qmin - offset) * scale, bounds.low), min((qmax - offset) * scale, bounds.high)
    if low >= high:
        # Nothing but zeros was seen, or nothing that the producer can emit: there is no range to narrow to.
        return scale, offset
    if low == 0:
        return _shrunk(high / (qmax - qmin), qmax - qmin, bounds.high), qmin
    if high == 0:
        return _shrunk(-low / (qmax - qmin), qmax - qmin, -bounds.low), qmax
    step = _shrunk((high - low) / (qmax - qmin + 1), qmax - qmin + 1, high - low)
    return step, min(qmax, math.floor(qmin - low / step))


def _shrunk(scale: float, steps: int, limit: float) -> float:
    """`scale` as float32, taken down until float32 `steps * scale` does not exceed `limit`."""
    step = np.float32(scale)
    while float(np.float32(step * np.float32(steps))) > limit:
        step = np.nextafter(step, np.float32(0))
    return float(step)


def half_precision(scale: float) -> float:
    """`scale` with the precision of float16; outside its normal range, the square of a rounded square root."""
    if _HALF_TINY <= scale <= _HALF_MAX:
        return float(np.float16(scale))
    return float(np.float32(np.float16(math.sqrt(scale))) ** 2)


def squared_error(seen: Distribution, scale: float, offset: int, *, bits: int) -> float:
    """Sum of squared differences between the values and their quantized selves, ``clamp(round(x / s) + o)``."""
    qmin, qmax = -(2 ** (bits - 1)), 2 ** (bits - 1) - 1
    levels = np.clip(np.rint(seen.values / scale) + offset, qmin, qmax) - offset
    difference: Array = seen.values - levels * scale
    np.multiply(difference, difference, out=difference)
    return seen.weighted_sum(difference)


def signal_to_noise_db(seen: Distribution, scale: float, offset: int, *, bits: int) -> float:
    """``10 log10(sum(x^2) / squared_error)``; inf without error."""
    signal = seen.weighted_sum(seen.values * seen.values)
    noise = squared_error(seen, scale, offset, bits=bits)
    return math.inf if noise <= 0 or signal <= 0 else 10 * math.log10(signal / noise)
