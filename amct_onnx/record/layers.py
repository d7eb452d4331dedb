"""What a record says of one layer."""

from __future__ import annotations

import operator
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

_FLOATS = ("scale_d", "scale_h")
_FLOAT_VECTORS = ("scale_w", "tensor_balance_factor", "scale_r")
_INT_VECTORS = ("offset_w", "shift_bit", "offset_r", "cluster")
_QUANTIZING = ("scale_d", "offset_d", "scale_h", "offset_h")
_QUANTIZING_VECTORS = ("scale_w", "offset_w", "shift_bit", "scale_r", "offset_r", "cluster")


def float32(value: float) -> float:
    """Return the float32 value nearest to ``value``, as a Python float; infinite where float32 has none."""
    with np.errstate(over="ignore"):
        return float(np.float32(value))


def float32s(values: Iterable[float]) -> tuple[float, ...]:
    """Return :func:`float32` of each value."""
    array = np.asarray(values if isinstance(values, tuple | list | np.ndarray) else tuple(values), dtype=np.float64)
    with np.errstate(over="ignore"):
        return tuple(array.astype(np.float32).tolist())


@dataclass(frozen=True, kw_only=True)
class LayerRecord:
    """Quantization factors of one layer; the fields are those of the record's schema, in its order.

    A field that is None or empty is not set, and is not written. Floats are held as Python floats that are float32
    values, whatever is given, so that a record read back equals the one written. Sequences other than tuples are taken.

    The activation is ``real = (q - offset_d) * scale_d``. ``scale_w`` and ``offset_w`` hold one value for the whole
    weight, or one for each output channel (recurrent layers: for each gate, or each gate's row).
    ``tensor_balance_factor`` holds one value for each input channel: activations are divided, weights multiplied by it.
    ``scale_h``/``offset_h`` and ``scale_r``/``offset_r`` are those of a recurrent layer's hidden state and its weight.
    """

    scale_d: float | None = None
    offset_d: int | None = None
    scale_w: tuple[float, ...] = ()
    offset_w: tuple[int, ...] = ()
    shift_bit: tuple[int, ...] = ()
    tensor_balance_factor: tuple[float, ...] = ()
    skip_fusion: bool | None = None
    dst_type: str | None = None
    act_type: str | None = None
    wts_type: str | None = None
    fakequant_precision_mode: str | None = None
    scale_h: float | None = None
    offset_h: int | None = None
    scale_r: tuple[float, ...] = ()
    offset_r: tuple[int, ...] = ()
    is_tensor_quantize: bool | None = None
    op_data_type: str | None = None
    cluster: tuple[int, ...] = ()
    channels: int | None = None
    height: int | None = None
    width: int | None = None

    def __post_init__(self) -> None:
        for name in _FLOATS:
            value = getattr(self, name)
            if value is not None:
                object.__setattr__(self, name, float32(value))
        for name in _FLOAT_VECTORS:
            object.__setattr__(self, name, float32s(getattr(self, name)))
        for name in _INT_VECTORS:
            object.__setattr__(self, name, tuple(map(operator.index, getattr(self, name))))

    @property
    def is_empty(self) -> bool:
        """True if no quantization field is set: the layer stays in float, other fields are still honoured."""
        unset = all(getattr(self, name) is None for name in _QUANTIZING)
        return unset and not any(getattr(self, name) for name in _QUANTIZING_VECTORS)

    @property
    def activation_type(self) -> str:
        """The activation's type: ``act_type``, else the older ``dst_type``, else INT8."""
        return self.act_type or self.dst_type or "INT8"

    @property
    def weight_type(self) -> str:
        """The weight's type: ``wts_type``, else the older ``dst_type``, else INT8."""
        return self.wts_type or self.dst_type or "INT8"


@dataclass(frozen=True)
class KVCacheRecord:
    """Quantization factors of one key/value cache: one scale and offset, or one for each channel; float32 values."""

    scale: tuple[float, ...] = ()
    offset: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "scale", float32s(self.scale))
        object.__setattr__(self, "offset", tuple(map(operator.index, self.offset)))
