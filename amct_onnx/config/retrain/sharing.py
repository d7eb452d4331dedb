"""Layers that share channels lose the same ones, so what is asked of one counts for all."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from amct_onnx.config.retrain.facts import RetrainFacts
from amct_onnx.config.retrain.options import FilterPruning
from amct_onnx.config.retrain.plan import LayerRetrain


def with_shared_channels(layers: Mapping[str, LayerRetrain], facts: RetrainFacts) -> dict[str, LayerRetrain]:
    """The layers, those that share channels with the smallest ratio of theirs, aligned if one of them is.

    Where one of them stays whole, all of them do; so do those whose channels pass through a layer that is skipped.
    """
    carried = {name: _carried(layer, layers, facts.layers[name].carriers) for name, layer in layers.items()}
    return {name: _shared(layer, carried) for name, layer in carried.items()}


def _carried(layer: LayerRetrain, layers: Mapping[str, LayerRetrain], carriers: Sequence[str]) -> LayerRetrain:
    skipped = next((name for name in carriers if layers[name].skipped), None)
    if layer.pruning is None or skipped is None:
        return layer
    return _whole(layer, f"its channels pass through '{skipped}', which stays: {layers[skipped].skipped}")


def _whole(layer: LayerRetrain, reason: str) -> LayerRetrain:
    origins = {part: place for part, place in layer.origins.items() if part != "prune"}
    return replace(layer, pruning=None, why_whole=reason, origins=origins)


def _shared(layer: LayerRetrain, layers: Mapping[str, LayerRetrain]) -> LayerRetrain:
    if layer.pruning is None or not layer.shares:
        return layer
    origin, ratio, is_aligned = layer.origins["prune"], layer.pruning.ratio, layer.pruning.ascend_optimized
    for name in layer.shares:
        other = layers[name]
        if other.pruning is None:
            why = other.why_whole or "its weights are thinned out instead"
            return _whole(layer, f"it shares channels with '{name}', which stays: {why}")
        is_aligned = is_aligned or other.pruning.ascend_optimized
        if other.pruning.ratio < ratio:
            origin, ratio = f"{other.origins['prune']} (of '{name}')", other.pruning.ratio
    pruning = FilterPruning(ratio=ratio, ascend_optimized=is_aligned)
    return replace(layer, pruning=pruning, origins={**layer.origins, "prune": origin})
