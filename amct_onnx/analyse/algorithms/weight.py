"""Weight scales: ARQ, and what the bias asks of them."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from amct_onnx.graph.weights import Array

BIAS_LIMIT = 2.0**30
"""Largest bias integer: half the int32 range is left to the products that are added to it."""
EMPTY_FILTER_BIAS = 2.0**23
"""Bias integer of a filter without weights: as precise as float32, and small enough to be exact in it."""


def arq(weight: Array, axis: int | None, *, bits: int = 8) -> NDArray[np.float32]:
    """ARQ: symmetric min-max.

    Per channel or per tensor, ``scale = |max| / (2^(n-1) - 1)``, or ``|min| / 2^(n-1)`` when the negative side is the
    larger one; 1.0 for a channel without weights.

    Args:
        weight: float weights.
        axis: output channel axis, None for one scale.
        bits: width of the integers.

    Returns:
        float32 [weight.shape[axis]] or [1].
    """
    others = tuple(i for i in range(weight.ndim) if i != axis) if axis is not None else None
    high = np.atleast_1d(weight.max(axis=others, initial=0)).astype(np.float32)
    low = np.atleast_1d(weight.min(axis=others, initial=0)).astype(np.float32)
    half = np.float32(2 ** (bits - 1))
    scale = np.where(-low > high, -low / half, high / (half - 1)).astype(np.float32)
    return np.asarray(np.where(scale < np.finfo(np.float32).tiny, np.float32(1.0), scale), np.float32)


def fit_bias(
    scale: NDArray[np.float32], bias: Array | None, data_scale: float, is_empty: NDArray[np.bool_]
) -> NDArray[np.float32]:
    """Raise weight scales until the int32 bias fits, and give filters without weights a scale that serves their bias.

    Args:
        scale: float32 [1] or [channels].
        bias: one value per channel, None without bias.
        data_scale: scale of the data input.
        is_empty: bool, shape of `scale`: whether all weights under that scale are zero.
    """
    if bias is None:
        return scale
    magnitude = np.abs(bias.reshape(-1).astype(np.float64))
    if scale.size == 1:
        magnitude = magnitude.max(initial=0.0, keepdims=True)
    smallest = magnitude / (BIAS_LIMIT * data_scale)
    serving = magnitude / (EMPTY_FILTER_BIAS * data_scale)
    wanted = np.where(is_empty & (magnitude > 0), serving, np.maximum(scale, smallest))
    return np.asarray(np.maximum(wanted, np.finfo(np.float32).tiny), np.float32)
