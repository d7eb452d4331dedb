"""Why a layer cannot be quantized after all, once its values are known."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from amct_onnx.analyse.statistics import TensorStatistics
from amct_onnx.graph.weights import Array
from amct_onnx.record import FLT_EPSILON
from amct_onnx.record.layer_rules import usable


class Obstacle(NamedTuple):
    """A reason and its remedy, as a report shows them."""

    reason: str
    remedy: str


def data_obstacle(seen: TensorStatistics, *, is_float: bool) -> Obstacle | None:
    """What calibration saw of a data input that forbids quantizing it."""
    if not is_float:
        return Obstacle("its data input is not float32", "convert the model to float32")
    if not seen.count:
        return Obstacle("calibration saw no finite value of its input", "give data that reaches it")
    return None


def scale_obstacle(scale: float, seen: TensorStatistics) -> Obstacle | None:
    """What is wrong with the scale of a data input: outside what devices take, or so coarse that nothing is left."""
    largest = max(-seen.low, seen.high)
    if not usable(scale):
        limits = f"above {FLT_EPSILON:.2g} and up to {1 / FLT_EPSILON:.0f}"
        return Obstacle(
            f"its input reaches {largest:.3g}, which asks for scale_d {scale:.3g}; devices take scales {limits}",
            "scale the data, or look for an overflow before the layer",
        )
    if rounds_to_zero(scale, largest):
        return Obstacle(f"its input stays within {largest:.3g}, too small for any scale a device takes", "scale it up")
    return None


def rounds_to_zero(scale: float, largest: float) -> bool:
    """Whether values of at most this magnitude, not all of them zero, would all become zero."""
    return largest > 0 and scale >= 2 * largest


def weight_obstacle(weight: Array | None, bias: Array | None) -> Obstacle | None:
    """What is wrong with a layer's constants."""
    for name, values in (("weight", weight), ("bias", bias)):
        if values is not None and not np.isfinite(values).all():
            return Obstacle(f"its {name} holds NaN or infinite values", f"repair the {name} and export again")
    return None


def accumulator_obstacle(weight_scale: NDArray[np.float32], data_scale: float) -> Obstacle | None:
    """Whether ``scale_w * scale_d`` leaves float32."""
    with np.errstate(over="ignore", under="ignore"):
        product = weight_scale * np.float32(data_scale)
    if np.all(np.isfinite(product) & (product > 0)):
        return None
    return Obstacle("scale_w * scale_d lies outside the range of float32", "scale its weights or its data")
