"""Scales and offsets in the form that passes use, and the integer arithmetic shared by every output form."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from amct_onnx.errors import RecordError
from amct_onnx.graph.weights import Array

INT32_MAX = 2**31 - 1
_BLOCK = 1 << 20
"""Weights quantized at a time; their floats are all the memory that quantizing takes besides its result."""


@dataclass(frozen=True)
class TensorQuant:
    """Uniform quantization of one activation tensor: ``real = (q - offset) * scale``.

    Attributes:
        scale: step, exactly a float32.
        offset: zero point in the signed range of `bits`.
        bits: 8 or 16.
    """

    scale: float
    offset: int
    bits: int = 8

    @property
    def qmin(self) -> int:
        """Smallest integer."""
        return -(1 << (self.bits - 1))

    @property
    def qmax(self) -> int:
        """Largest integer."""
        return -self.qmin - 1

    @property
    def low(self) -> float:
        """Smallest real value that is not cut off."""
        return (self.qmin - self.offset) * self.scale

    @property
    def high(self) -> float:
        """Largest real value that is not cut off."""
        return (self.qmax - self.offset) * self.scale


@dataclass(frozen=True)
class LayerQuant:
    """Quantization of one layer.

    Attributes:
        data: its data input.
        weight_scale: float32 [1] or [channels_out].
        weight_bits: 4, 6, 7 or 8.
    """

    data: TensorQuant
    weight_scale: NDArray[np.float32]
    weight_bits: int = 8

    @property
    def accumulator_scale(self) -> NDArray[np.float32]:
        """``scale_w * scale_d`` as float32: what one unit of the int32 accumulator is worth."""
        return np.asarray(self.weight_scale * np.float32(self.data.scale), np.float32)


def quantize_weight(weight: Array, scale: NDArray[np.float32], axis: int, bits: int = 8) -> NDArray[np.int8]:
    """``clamp(round_half_even(w / scale))`` along the channel `axis`.

    Args:
        weight: float weights of any rank.
        scale: float32 [1] or [weight.shape[axis]].
        axis: output channel axis.
        bits: width of the signed integers, kept in int8.
    """
    shape = [1] * weight.ndim
    if scale.size > 1:
        shape[axis] = scale.size
    divisor = np.broadcast_to(scale.reshape(shape), [weight.shape[0], *shape[1:]])
    limit = 2 ** (bits - 1)
    integers = np.empty(weight.shape, np.int8)
    rows = max(1, _BLOCK * weight.shape[0] // max(1, weight.size))
    for start in range(0, weight.shape[0], rows):
        block = slice(start, start + rows)
        quotient = weight[block] / divisor[block]
        np.rint(quotient, out=quotient)
        integers[block] = np.clip(quotient, -limit, limit - 1, out=quotient)
    return integers


def quantize_bias(layer: str, bias: Array, accumulator_scale: NDArray[np.float32]) -> NDArray[np.int32]:
    """``round_half_even(b / (scale_w * scale_d))`` as int32, one value per output channel.

    Args:
        layer: name for the error message.
        bias: any shape whose last axis is the channel axis, or one value.
        accumulator_scale: float32 [1] or [channels].

    Raises:
        RecordError: a value does not fit int32.
    """
    integers = np.rint(bias.astype(np.float64) / accumulator_scale.astype(np.float64))
    fits = np.abs(integers) <= INT32_MAX
    if not np.all(fits):
        channel = int(np.argmin(fits.reshape(-1, fits.shape[-1]).all(axis=0)))
        scale = float(accumulator_scale.reshape(-1)[channel if accumulator_scale.size > 1 else 0])
        raise RecordError(
            f"layer '{layer}': the bias of output channel {channel} does not fit int32 with scale_w * scale_d = "
            f"{scale:.3g}; raise scale_w of that channel or delete the layer's entry"
        )
    return integers.astype(np.int32)
