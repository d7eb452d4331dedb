"""DMQ before calibration: watch the input channels of the layers to balance, and choose their factors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from amct_onnx.analyse.algorithms.balance import balance_factors
from amct_onnx.analyse.engine import Calibration
from amct_onnx.analyse.feeds import walks_once
from amct_onnx.analyse.options import PlanOptions
from amct_onnx.analyse.walk import Progress, Watcher, walk
from amct_onnx.errors import DataError
from amct_onnx.graph import constant_array
from amct_onnx.graph.weights import Array
from amct_onnx.passes.balance import Factors
from amct_onnx.passes.locate import Layer, locate_layers
from amct_onnx.rewrite import Prepared


class ChannelMaxima:
    """Largest absolute value of each channel, over all runs; what is not finite is left out."""

    def __init__(self, channels: int, axis: int) -> None:
        self.axis = axis
        self.maxima: NDArray[np.float32] = np.zeros(channels, np.float32)

    def update(self, array: Array) -> None:
        """Take in one tensor; one of another number of channels tells nothing."""
        if not array.size or array.ndim < 2 or array.shape[self.axis] != self.maxima.size:
            return
        axis = self.axis % array.ndim
        others = tuple(index for index in range(array.ndim) if index != axis)
        high, low = array.max(axis=others), array.min(axis=others)
        largest = np.maximum(high, -low)
        if not np.isfinite(largest).all():
            largest = np.abs(np.where(np.isfinite(array), array, 0)).max(axis=others)
        np.maximum(self.maxima, largest, out=self.maxima)


def choose_balance(
    prepared: Prepared,
    options: PlanOptions,
    data: Any,
    *,
    progress: Progress | None = None,
) -> dict[str, Factors]:
    """Balance factors from a walk over the data; layers that read the same channels with one strength share theirs.

    Args:
        prepared: the model, not balanced.
        options: which layers to balance, and how strongly.
        data: feeds that can be walked again, since calibration follows.
        progress: wraps the iterator of feeds.

    Returns:
        Layer name -> float32 [channels_in]; empty when no layer is to be balanced.

    Raises:
        DataError: the data does not fit the model, or can be walked only once.
    """
    groups: dict[tuple[str, float, int, int | None], list[Layer]] = {}
    for layer in locate_layers(prepared.model, options.skip).outside_bodies().layers:
        strength = options.of(layer.name).migration_strength
        if strength is not None and layer.weight is not None:
            # A convolution and a matrix product that read one tensor have other channels in it.
            key = (layer.activation.name, strength, layer.spec.channel_axis, layer.channels_in)
            groups.setdefault(key, []).append(layer)
    if not groups:
        return {}
    _check_walkable(data)
    maxima = {key: channel_maxima(prepared, members[0]) for key, members in groups.items()}
    watchers: dict[str, list[Watcher]] = {}
    for key, seen in maxima.items():
        watchers.setdefault(prepared.origin_of(key[0]).name, []).append(seen.update)
    walk(prepared.model.proto, prepared.model.base_dir, watchers, data, progress=progress, limit=options.feeds)
    factors: dict[str, Factors] = {}
    for key, members in groups.items():
        weights = np.max([weight_maxima(layer) for layer in members], axis=0)
        shared = balance_factors(maxima[key].maxima, weights, migration_strength=key[1])
        factors.update({layer.name: shared for layer in members})
    return factors


def balance_notes(prepared: Prepared, options: PlanOptions) -> tuple[str, ...]:
    """What a report should say of layers that are asked to be balanced and cannot be."""
    survey = locate_layers(prepared.model, options.skip)
    asked = [one for one in survey.all_layers if options.of(one.name).migration_strength is not None]
    inside = [one.name for one in asked if one.in_body]
    recurrent = [one.name for one in asked if not one.in_body and one.spec.gates]
    kinds = (("layers in control-flow bodies", inside), ("recurrent layers", recurrent))
    return tuple(f"{kind} are not balanced (DMQ): '{names[0]}'{_more(names)}" for kind, names in kinds if names)


def _more(names: Sequence[str]) -> str:
    return f" and {len(names) - 1} more" if len(names) > 1 else ""


def _check_walkable(data: Any) -> None:
    if isinstance(data, Calibration):
        raise DataError("balancing (DMQ) watches input channels, which statistics do not hold; give the data itself")
    if walks_once(data):
        raise DataError(
            "balancing (DMQ) walks over the data twice, and a generator or reader can be walked once; give a list"
        )


def channel_maxima(prepared: Prepared, layer: Layer) -> ChannelMaxima:
    """A watcher of the source's tensor that a layer reads."""
    axis = -2 if layer.activation.name in prepared.moved else layer.spec.channel_axis
    return ChannelMaxima(layer.channels_in or 0, axis)


def weight_maxima(layer: Layer) -> Array:
    """Largest absolute weight of each input channel, [channels_in]."""
    if layer.weight is None:
        raise TypeError(f"{layer.op_type} has no weight")
    magnitudes = np.abs(layer.in_channels.rows(constant_array(layer.weight)))
    return np.asarray(magnitudes.max(axis=1, initial=0.0))
