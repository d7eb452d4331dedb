"""Scales and offsets in the form that passes use, and the integer arithmetic shared by every output form."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from amct_onnx.errors import RecordError
from amct_onnx.graph.channels import Channels
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
        weight_scale: float32 [1] or [channels_out]; the scale of `second` where there is one.
        weight_bits: 4, 6, 7 or 8.
        force_fp16: keep only the upper 19 bits of the accumulator's scale, as devices do that compute in float16.
        second: its second factor, for a product of two computed tensors.
    """

    data: TensorQuant
    weight_scale: NDArray[np.float32]
    weight_bits: int = 8
    force_fp16: bool = False
    second: TensorQuant | None = None

    @property
    def accumulator_scale(self) -> NDArray[np.float32]:
        """``scale_w * scale_d`` as float32: what one unit of the int32 accumulator is worth."""
        scale = np.asarray(self.weight_scale * np.float32(self.data.scale), np.float32)
        return truncate_to_19_bits(scale) if self.force_fp16 else scale


@dataclass(frozen=True)
class RecurrentQuant:
    """Quantization of one recurrent layer.

    Attributes:
        data: its data input.
        hidden: its hidden state.
        weight_scale: of W, float32 [gates] or [rows] over all directions.
        recurrence_scale: of R, likewise.
        weight_bits: 8.
        force_fp16: as of :class:`LayerQuant`.
    """

    data: TensorQuant
    hidden: TensorQuant
    weight_scale: NDArray[np.float32]
    recurrence_scale: NDArray[np.float32]
    weight_bits: int = 8
    force_fp16: bool = False

    @property
    def accumulator_scales(self) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """``scale_w * scale_d`` and ``scale_r * scale_h``, both of one length, as float32."""
        size = max(self.weight_scale.size, self.recurrence_scale.size)
        pairs = ((self.weight_scale, self.data), (self.recurrence_scale, self.hidden))
        scales = [np.repeat(scale, size // scale.size) * np.float32(quant.scale) for scale, quant in pairs]
        first, second = (truncate_to_19_bits(scale) if self.force_fp16 else scale for scale in scales)
        return first, second


def truncate_to_19_bits(scale: NDArray[np.float32]) -> NDArray[np.float32]:
    """Sign, 8 bits of exponent and 10 of mantissa; the rest is cut off, not rounded."""
    return np.asarray((scale.view(np.uint32) & np.uint32(0xFFFFE000)).view(np.float32))


def quantize_weight(weight: Array, scale: NDArray[np.float32], channels: Channels, bits: int = 8) -> NDArray[np.int8]:
    """``clamp(round_half_even(w / scale))`` per output channel.

    Args:
        weight: float weights of any rank.
        scale: float32 [1] or [channels.count].
        channels: where the output channels lie.
        bits: width of the signed integers, kept in int8.

    Returns:
        int8, shape of `weight`.
    """
    whole: Array = weight.reshape(channels.view)
    first, *others = channels.view
    divisor = channels.spread(scale)
    divisor = np.broadcast_to(divisor, [first, *divisor.shape[1:]])
    limit = 2 ** (bits - 1)
    integers = np.empty(channels.view, np.int8)
    rows = max(1, _BLOCK // max(1, math.prod(others)))
    for start in range(0, first, rows):
        block = slice(start, start + rows)
        quotient = whole[block] / divisor[block]
        np.rint(quotient, out=quotient)
        integers[block] = np.clip(quotient, -limit, limit - 1, out=quotient)
    return integers.reshape(weight.shape)


def quantize_bias(
    layer: str,
    bias: Array,
    accumulator_scale: NDArray[np.float32],
    names: tuple[str, str] = ("scale_w", "scale_d"),
) -> NDArray[np.int32]:
    """``round_half_even(b / (scale_w * scale_d))`` as int32, one value per output channel.

    Args:
        layer: name for the error message.
        bias: any shape whose last axis is the channel axis, or one value.
        accumulator_scale: float32 [1] or [channels].
        names: what the record calls the scales of weight and data, for the error message.

    Raises:
        RecordError: a value does not fit int32.
    """
    integers = np.rint(bias.astype(np.float64) / accumulator_scale.astype(np.float64))
    fits = np.abs(integers) <= INT32_MAX
    if not np.all(fits):
        channel = int(np.argmin(fits.reshape(-1, fits.shape[-1]).all(axis=0)))
        scale = float(accumulator_scale.reshape(-1)[channel if accumulator_scale.size > 1 else 0])
        raise RecordError(
            f"layer '{layer}': the bias of output channel {channel} does not fit int32 with {' * '.join(names)} = "
            f"{scale:.3g}; raise {names[0]} of that channel or delete the layer's entry"
        )
    return integers.astype(np.int32)
