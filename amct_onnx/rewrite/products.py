"""Layers that multiply two computed tensors: the record quantizes the first, the tensors file the second."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

import numpy as np

from amct_onnx.passes.locate import Layer
from amct_onnx.passes.quant_params import LayerQuant, TensorQuant
from amct_onnx.record import FLT_EPSILON, LayerRecord, Record
from amct_onnx.record.complaints import Complaint
from amct_onnx.record.findings import Severity
from amct_onnx.record.layer_rules import usable


def second_names(layers: Iterable[Layer]) -> dict[str, str]:
    """Name of each layer that multiplies two computed tensors -> name of its second factor."""
    return {layer.name: layer.second.name for layer in layers if layer.second is not None}


def product_quant(quant: LayerQuant, second: LayerRecord) -> LayerQuant:
    """Quantization of a product, from that of its first factor and the entry of its second one.

    The scale of the second factor stands where a layer has that of its weight, so accumulators are worth the product
    of both.
    """
    if second.scale_d is None:
        raise TypeError("the entry has no scale_d")
    scale = np.array([second.scale_d], np.float32)
    return replace(quant, weight_scale=scale, second=TensorQuant(second.scale_d, 0))


def product_complaints(layer: LayerRecord, tensor: str, tensors: Record | None) -> Iterator[Complaint]:
    """Yield what is wrong with a product's entry, and with that of its second factor in the tensors file.

    Args:
        layer: the product's entry.
        tensor: name of its second factor.
        tensors: content of the tensors file, None without one.
    """
    if layer.scale_w != (1.0,):
        message = (
            f'scale_w has no effect; the scale of the second input "{tensor}" stands in the tensors file: write 1.0'
        )
        yield Complaint("scale_w", message, Severity.WARNING)
    remedy = "give the tensors file of this plan (*_tensors.txt, --tensors), or delete the layer's entry"
    entry = None if tensors is None else tensors.layers.get(tensor)
    if entry is None or entry.scale_d is None:
        yield Complaint(None, f'its second input "{tensor}" is computed, and no tensors file gives its scale: {remedy}')
    elif entry.offset_d:
        message = f'its second input "{tensor}" has offset_d {entry.offset_d} in the tensors file; a product of two '
        yield Complaint(None, message + "computed tensors takes no zero points: write 0, or delete the layer's entry")
    elif not usable(entry.scale_d):
        limits = f"above {FLT_EPSILON:.8g} and up to {1 / FLT_EPSILON:.0f}"
        message = (
            f'its second input "{tensor}" has scale_d {entry.scale_d:.9g} in the tensors file; devices take scales '
        )
        yield Complaint(None, f"{message}{limits}: calibrate again, or delete the layer's entry")


def with_seconds(
    layers: Mapping[str, LayerQuant], seconds: Mapping[str, str], tensors: Record | None
) -> dict[str, LayerQuant]:
    """`layers` with the products among them completed; every second factor has been checked."""
    entries = {} if tensors is None else tensors.layers
    return {
        name: product_quant(quant, entries[seconds[name]]) if name in seconds else quant
        for name, quant in layers.items()
    }
