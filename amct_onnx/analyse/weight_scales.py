"""Weight scales of a model's layers: chosen from the weights alone, then raised to what the bias needs."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from amct_onnx.analyse.algorithms import choose_weight
from amct_onnx.analyse.algorithms.weight import arq, fit_bias
from amct_onnx.analyse.options import PlanOptions
from amct_onnx.config import WeightOptions
from amct_onnx.graph import constant_array
from amct_onnx.graph.channels import Channels
from amct_onnx.graph.weights import Array
from amct_onnx.passes.locate import Layer
from amct_onnx.rewrite import Prepared

Scales = NDArray[np.float32]


class WeightScales:
    """Chooses the weight scales of one prepared model."""

    def __init__(self, prepared: Prepared, options: PlanOptions) -> None:
        self._prepared = prepared
        self._options = options
        # Unrolled recurrent layers read one weight many times; its search is done once.
        self._chosen: dict[tuple[int, Channels | None, WeightOptions], Scales] = {}

    def constants(self, layer: Layer) -> tuple[Array | None, Array | None]:
        """Weight and bias as they are without what a balanced layer behind has put into them."""
        weight = None if layer.weight is None else constant_array(layer.weight)
        bias = None if layer.bias is None else constant_array(layer.bias)
        factors = self._prepared.folded.get(layer.name)
        if factors is None or weight is None:
            return weight, bias
        channels = layer.out_channels
        whole = (weight.reshape(channels.view) * channels.spread(factors)).reshape(weight.shape)
        return np.asarray(whole, np.float32), None if bias is None else np.asarray(bias * factors, np.float32)

    def choose(self, layer: Layer, weight: Array | None) -> Scales:
        """Scales [1] or [channels_out] that suit the weights."""
        if weight is None:
            return np.ones(1, np.float32)
        options = self._options.of(layer.name).weight
        per_channel = options.per_channel
        if per_channel is None:
            per_channel = layer.spec.per_channel or (self._options.gemm_per_channel and not layer.has_batched_weight)
        key = (id(layer.weight), layer.out_channels if per_channel else None, options)
        if key not in self._chosen:
            rows = layer.out_channels.rows(weight) if per_channel else weight.reshape(1, -1)
            # In half the range nothing may be cut off: the record says int8, and a rewrite would not cut at 7 bits.
            reduced = self._options.reduce_range and options.bits == 8
            self._chosen[key] = arq(rows, 0, bits=7) if reduced else choose_weight(options, rows, 0)
        return self._chosen[key]


def fit_scales(layer: Layer, weight: Array | None, bias: Array | None, scale: Scales, data_scale: float) -> Scales:
    """`scale`, high enough for the bias and for float32.

    Args:
        layer: the layer.
        weight: its weight.
        bias: its bias.
        scale: float32 [1] or [channels_out].
        data_scale: scale of its data input.
    """
    if weight is None:
        return scale
    rows = layer.out_channels.rows(weight) if scale.size > 1 else weight.reshape(1, -1)
    is_empty = ~np.any(rows, axis=1)
    # A channel that training left all but dead must not take scale_w * scale_d out of float32's normal range.
    least = np.nextafter(np.float32(np.finfo(np.float32).tiny / min(data_scale, 1.0)), np.float32(np.inf))
    return np.asarray(np.maximum(fit_bias(scale, bias, data_scale, is_empty), least), np.float32)
