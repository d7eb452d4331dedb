"""Rules on the values of a layer or cache, for which no model is needed. Each function is one rule."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator

from amct_onnx.record.complaints import Complaint
from amct_onnx.record.findings import Severity
from amct_onnx.record.layers import KVCacheRecord, LayerRecord

# Least step of float32 at 1. AMCT's public documentation bounds scales and balance factors by it and its inverse.
FLT_EPSILON = 2.0**-23

OFFSET_RANGES = {"INT4": (-8, 7), "INT8": (-128, 127), "INT16": (-32768, 32767)}
_TYPES = {
    "dst_type": ("INT8", "INT4"),
    "act_type": tuple(OFFSET_RANGES),
    "wts_type": ("INT4", "INT6", "INT7", "INT8"),
    "fakequant_precision_mode": ("DEFAULT", "FORCE_FP16_QUANT"),
}
_CLUSTER_SIZES = (16, 32)
_TENSOR_KEY = re.compile(r".+:(0|[1-9][0-9]*)", re.DOTALL)
_RECALIBRATE = "calibrate the layer again, or delete its entry to leave it in float"


def layer_complaints(key: str, layer: LayerRecord) -> Iterator[Complaint]:
    """Yield what is wrong with the values of one layer."""
    yield from _scales(layer)
    yield from _offsets(layer)
    yield from _weight_offsets(layer)
    yield from _lengths(layer)
    yield from _balance(layer)
    yield from _types(layer)
    yield from _cluster(layer)
    yield from _shift_bit(layer)
    yield from _tensor(key, layer)


def cache_complaints(cache: KVCacheRecord) -> Iterator[Complaint]:
    """Yield what is wrong with one key/value cache."""
    if not cache.scale:
        yield Complaint(None, "scale is missing; a cache gives scale and offset, in equal number")
    yield from _positive("scale", cache.scale)
    yield from _equal_lengths("scale", cache.scale, "offset", cache.offset)
    yield from _in_range("offset", cache.offset, "INT8")


def device_complaint(layer: LayerRecord, severity: Severity) -> Iterator[Complaint]:
    """Yield a complaint if ``scale_d`` has no usable inverse: a device multiplies by ``1 / scale_d``."""
    if layer.scale_d is not None and 0 < layer.scale_d < math.inf and not usable(layer.scale_d):
        message = (
            f"scale_d is {layer.scale_d:.9g}; devices multiply by its inverse and take scales above "
            f"{FLT_EPSILON:.8g} and up to {1 / FLT_EPSILON:.0f}: {_RECALIBRATE}"
        )
        yield Complaint("scale_d", message, severity)


def usable(scale: float) -> bool:
    """Return whether devices take a scale of this size."""
    return FLT_EPSILON < scale <= 1 / FLT_EPSILON


def _scales(layer: LayerRecord) -> Iterator[Complaint]:
    for name, value in (("scale_d", layer.scale_d), ("scale_h", layer.scale_h)):
        if value is not None:
            yield from _positive(name, (value,))
    yield from _positive("scale_w", layer.scale_w)
    yield from _positive("scale_r", layer.scale_r)


def _positive(name: str, values: tuple[float, ...]) -> Iterator[Complaint]:
    for index, value in enumerate(values):
        if not 0 < value < math.inf:
            which = f"{name}[{index}]" if len(values) > 1 else name
            yield Complaint(name, f"{which} is {value:.9g}; a scale is positive and finite: {_RECALIBRATE}")
            return


def _offsets(layer: LayerRecord) -> Iterator[Complaint]:
    for name, value in (("offset_d", layer.offset_d), ("offset_h", layer.offset_h)):
        if value is not None:
            yield from _in_range(name, (value,), layer.activation_type)


def _in_range(name: str, values: tuple[int, ...], kind: str) -> Iterator[Complaint]:
    least, greatest = OFFSET_RANGES.get(kind, OFFSET_RANGES["INT16"])
    wrong = next((value for value in values if not least <= value <= greatest), None)
    if wrong is not None:
        yield Complaint(name, f"{name} holds {wrong}; of {kind} it takes {least} to {greatest}: correct it")


def _weight_offsets(layer: LayerRecord) -> Iterator[Complaint]:
    for name, values in (("offset_w", layer.offset_w), ("offset_r", layer.offset_r)):
        wrong = next((value for value in values if value), 0)
        if wrong:
            yield Complaint(name, f"{name} holds {wrong}; weights are quantized symmetrically: every {name} is 0")


def _lengths(layer: LayerRecord) -> Iterator[Complaint]:
    if layer.scale_w and layer.offset_w:
        yield from _equal_lengths("scale_w", layer.scale_w, "offset_w", layer.offset_w)
    if layer.scale_r and layer.offset_r:
        yield from _equal_lengths("scale_r", layer.scale_r, "offset_r", layer.offset_r)


def _equal_lengths(scale: str, scales: tuple[float, ...], offset: str, offsets: tuple[int, ...]) -> Iterator[Complaint]:
    if len(scales) != len(offsets):
        message = (
            f"{scale} has length {len(scales)} and {offset} has length {len(offsets)}; give one offset to each scale"
        )
        yield Complaint(offset, message)


def _balance(layer: LayerRecord) -> Iterator[Complaint]:
    for index, value in enumerate(layer.tensor_balance_factor):
        if not FLT_EPSILON <= value <= 1 / FLT_EPSILON:
            message = (
                f"tensor_balance_factor[{index}] is {value:.9g}; a factor lies from {FLT_EPSILON:.8g} to "
                f"{1 / FLT_EPSILON:.0f}: balance the layer again, or delete its factors"
            )
            yield Complaint("tensor_balance_factor", message)
            return


def _types(layer: LayerRecord) -> Iterator[Complaint]:
    for name, allowed in _TYPES.items():
        value = getattr(layer, name)
        if value is not None and value not in allowed:
            message = f'{name} is "{value}"; write one of {", ".join(allowed)}, or delete the field'
            yield Complaint(name, message)


def _cluster(layer: LayerRecord) -> Iterator[Complaint]:
    least, most = _CLUSTER_SIZES
    if layer.cluster and not least <= len(layer.cluster) <= most:
        message = f"cluster has length {len(layer.cluster)}; it takes {least} to {most}: correct or delete them"
        yield Complaint("cluster", message)
    yield from _in_range("cluster", layer.cluster, "INT8")


def _shift_bit(layer: LayerRecord) -> Iterator[Complaint]:
    if layer.shift_bit:
        message = "shift_bit belongs to joint quantization, which is not applied; it is ignored and may be deleted"
        yield Complaint("shift_bit", message, Severity.WARNING)


def _tensor(key: str, layer: LayerRecord) -> Iterator[Complaint]:
    if not layer.is_tensor_quantize:
        return
    if not _TENSOR_KEY.fullmatch(key):
        message = (
            'is_tensor_quantize asks for a key "node:index" that names an input; correct the key or delete the field'
        )
        yield Complaint("is_tensor_quantize", message)
    if layer.activation_type != "INT8":
        message = f"the type is {layer.activation_type}; single inputs take INT8: correct it"
        yield Complaint("act_type" if layer.act_type else "dst_type", message)
    if layer.tensor_balance_factor:
        yield Complaint("tensor_balance_factor", "the entry quantizes an input, which cannot be balanced; delete it")
    if layer.scale_w or layer.offset_w:
        message = (
            "the entry quantizes an input, which has no weight; scale_w and offset_w are ignored and may be deleted"
        )
        yield Complaint("scale_w" if layer.scale_w else "offset_w", message, Severity.WARNING)
