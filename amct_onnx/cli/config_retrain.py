"""What ``amct_onnx config show`` says of a retrain config, and of the config of a search for prune ratios."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from amct_onnx.analyse.pruning.configurable import is_searched, search_notes
from amct_onnx.api.prune_config import resolve_auto_config, resolve_prune_config, retrain_notes
from amct_onnx.cli.console import Console
from amct_onnx.cli.words import of_all
from amct_onnx.config.auto_prune import parse_auto_prune
from amct_onnx.config.retrain import DataQuant, LayerRetrain, RetrainConfig, parse_retrain_request

_SEARCH_SETTINGS = ("compress_ratio", "ascend_optimized", "max_prune_ratio", "test_iteration")


def show_retrain(
    text: str, file: Path, model: Path, console: Console, shapes: Mapping[str, Sequence[int]] | None
) -> None:
    """Show what a retrain config says about each layer of a model."""
    config = resolve_prune_config(model, parse_retrain_request(text, source=str(file)), input_shapes=shapes)
    console.result({"config": str(file), "model": str(model), **as_data(config)})
    if console.as_json:
        return
    if config.quantized():
        _show_settings(console, _settings(config))
    headers = ("layer", "type", "pruned", "quantized", "set by", "channels shared with")
    console.table(headers, [_row(name, layer) for name, layer in config.layers.items()])
    console.say(_summary(config))
    for note in _warnings(config):
        console.say(f"warning: {note}")


def _summary(config: RetrainConfig) -> str:
    """How many layers each part of a config concerns."""
    counts = {"thinned out 4:2": len(config.sparse()), "quantized": len(config.quantized())}
    others = "".join(f", {count} {what}" for what, count in counts.items() if count)
    pruned = sum(not config.layers[name].why_none for name in config.with_pruning())
    return f"{of_all(pruned, len(config.layers), 'layer')} to be pruned{others}"


def _warnings(config: RetrainConfig) -> tuple[str, ...]:
    """What reading and resolving found; every part is shown, so none is called undone."""
    return retrain_notes(config, channels=True, weights=True, scales=True)


def show_auto(text: str, file: Path, model: Path, console: Console, shapes: Mapping[str, Sequence[int]] | None) -> None:
    """Show what a search may do with each layer of a model."""
    config = parse_auto_prune(text, source=str(file))
    resolved = resolve_auto_config(model, config, input_shapes=shapes)
    notes = search_notes(config, resolved)
    settings = {name: getattr(config, name) for name in _SEARCH_SETTINGS}
    layers = [_searched_data(name, layer) for name, layer in resolved.layers.items()]
    console.result(
        {"config": str(file), "model": str(model), "settings": settings, "layers": layers, "warnings": list(notes)}
    )
    if console.as_json:
        return
    _show_settings(console, settings)
    headers = ("layer", "type", "channels pruned", "set by", "channels shared with")
    rows = [_row(name, layer) for name, layer in resolved.layers.items()]
    console.table(headers, [(name, kind, pruned, place, shared) for name, kind, pruned, _, place, shared in rows])
    searched = sum(layer["searched"] for layer in layers)
    console.say(f"{of_all(searched, len(layers), 'layer')} searched")
    for note in notes:
        console.say(f"warning: {note}")


def _settings(config: RetrainConfig) -> dict[str, Any]:
    """What concerns all layers that are quantized."""
    return {"batch_num": config.batch_num, "force_fp16_quant": config.force_fp16_quant}


def _show_settings(console: Console, settings: Mapping[str, Any]) -> None:
    for name, value in settings.items():
        console.say(f"{name}: {str(value).lower()}")


def _row(name: str, layer: LayerRetrain) -> tuple[str, ...]:
    return (
        name,
        layer.op_type,
        pruning_text(layer),
        quantization_text(layer),
        "; ".join(f"{part}: {place}" for part, place in layer.origins.items()),
        ", ".join(layer.shares),
    )


def pruning_text(layer: LayerRetrain) -> str:
    """How a layer is pruned, or why not."""
    if is_searched(layer):
        return "searched"
    if layer.pruning is not None:
        if layer.why_none:
            return f"{layer.pruning.ratio:g}, but no channel goes: {layer.why_none}"
        aligned = ", a multiple of 16 stays" if layer.pruning.ascend_optimized else ""
        return f"{layer.pruning.ratio:g}{aligned}"
    if layer.sparsity is not None:
        frequency = layer.sparsity.update_freq
        training = f", chosen once: update_freq {frequency} means something in training alone" if frequency else ""
        return f"4:2 sparsity ({layer.sparsity.n_out_of_m}{training})"
    return f"no: {layer.why_whole}"


def quantization_text(layer: LayerRetrain) -> str:
    """How training quantizes a layer, or why not."""
    if layer.why_float:
        return f"no: {layer.why_float}"
    parts = []
    if layer.data is not None:
        parts.append(f"data ulq_quantize, {layer.data.bits} bits{_range_text(layer.data)}")
    if layer.weight is not None:
        scales = "per channel" if layer.weight.channel_wise else "one scale"
        parts.append(f"weights {layer.weight.algorithm}, {layer.weight.bits} bits, {scales}")
    return "; ".join(parts)


def _range_text(data: DataQuant) -> str:
    """Which range is given; empty where none is."""
    low = 0.0 if data.fixed_min else data.clip_min
    ends = (("from", low), ("to", data.clip_max))
    given = [f"{word} {bound:g}" for word, bound in ends if bound is not None]
    return f", {' '.join(given)}" if given else ""


def _searched_data(name: str, layer: LayerRetrain) -> dict[str, Any]:
    data = _layer_data(name, replace(layer, pruning=None) if is_searched(layer) else layer)
    return {**data, "searched": is_searched(layer)}


def as_data(config: RetrainConfig) -> dict[str, Any]:
    """A resolved config as plain data; the schema stands in docs/json.md."""
    return {
        "settings": _settings(config),
        "layers": [_layer_data(name, layer) for name, layer in config.layers.items()],
        "warnings": list(_warnings(config)),
    }


def _layer_data(name: str, layer: LayerRetrain) -> dict[str, Any]:
    data = {"name": name, **asdict(layer)}
    del data["skipped"], data["why_dense"]  # why_whole says what counts
    return data
