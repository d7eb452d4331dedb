"""``amct_onnx config show``."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Mapping
from dataclasses import asdict, fields
from enum import Enum
from typing import Any

from amct_onnx.analyse.input_shapes import parse_input_shape
from amct_onnx.api.configured import Configured, configure
from amct_onnx.api.source import blaming_illegal_models, load_source
from amct_onnx.cli.config_retrain import show_auto, show_retrain
from amct_onnx.cli.console import Console
from amct_onnx.cli.words import of_all
from amct_onnx.config import ActivationAlgorithm, ActivationOptions, LayerConfig, TensorOptions, WeightOptions
from amct_onnx.config.auto_prune import is_auto_prune
from amct_onnx.config.layer_options import DEFAULT_ORIGIN
from amct_onnx.config.retrain import is_retrain_config
from amct_onnx.config.text_file import read_config

_GLOBALS = ("batch_num", "activation_offset", "joint_quant", "do_fusion", "force_fp16_quant", "skip_fusion_layers")
_SHOWN_APART = {"algorithm", "bits", "symmetric"}


def run_show(arguments: argparse.Namespace, console: Console) -> int:
    """Show what a config says about each layer of a model."""
    text = read_config(arguments.file)
    show_pruning = show_retrain if is_retrain_config(text) else show_auto if is_auto_prune(text) else None
    if show_pruning is not None:
        shapes = parse_input_shape(arguments.input_shape) if arguments.input_shape is not None else None
        show_pruning(text, arguments.file, arguments.model, console, shapes)
        return 0
    proto, base_dir = load_source(arguments.model)
    with blaming_illegal_models(proto, base_dir):
        found = configure(proto, base_dir, arguments.file)
    console.result({"config": str(arguments.file), "model": str(arguments.model), **as_data(found)})
    if console.as_json:
        return 0
    config = found.config
    for name in _GLOBALS:
        console.say(f"{name}: {_plain(getattr(config, name))} ({config.origins[name]})")
    headers = ("layer", "type", "activations", "weights", "DMQ", "quantized", "set by (the rest is default)")
    rows = [_row(name, layer) for name, layer in config.layers.items()]
    refused = found.facts.refused.items()
    rows += [(name, found.facts.nodes.get(name, ""), "", "", "", f"no: {reason}", "") for name, reason in refused]
    console.table(headers, rows)
    inputs = [(entry.node, entry.input_index, activation_text(entry.activation)) for entry in config.tensors]
    console.table(("input of", "index", "quantized"), inputs)
    enabled = len(config.enabled())
    console.say(f"{of_all(enabled, len(config.layers), 'layer')} quantized")
    for warning in config.warnings:
        console.say(f"warning: {warning}")
    return 0


def _row(name: str, layer: LayerConfig) -> tuple[str, ...]:
    options = layer.options
    strength = options.migration_strength
    return (
        name,
        layer.op_type,
        activation_text(options.activation),
        weight_text(options.weight),
        "no" if strength is None else f"{strength:g}",
        "yes" if layer.enabled else f"no: {layer.reason}",
        _origins_text(layer.origins),
    )


def activation_text(options: ActivationOptions) -> str:
    """How an activation is quantized, parameters where they are not the default."""
    parts = [options.algorithm.value, f"{options.bits} bits", "symmetric" if options.symmetric else "asymmetric"]
    default = ActivationOptions()
    for member in fields(options):
        value = getattr(options, member.name)
        if member.name not in _SHOWN_APART and value != getattr(default, member.name):
            parts.append(f"{member.name} {value:g}")
    return ", ".join(parts)


def weight_text(options: WeightOptions) -> str:
    """How weights are quantized."""
    scales = "per channel" if options.per_channel else "one scale"
    return f"{options.algorithm.value}, {options.bits} bits, {scales}"


def _origins_text(origins: Mapping[str, str]) -> str:
    places: dict[str, list[str]] = {}
    for name, place in origins.items():
        if place != DEFAULT_ORIGIN:
            places.setdefault(place, []).append(name)
    return "; ".join(f"{place}: {', '.join(names)}" for place, names in places.items())


def _plain(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return (", ".join(value) or "none") if isinstance(value, tuple) else str(value)


def as_data(found: Configured) -> dict[str, Any]:
    """A resolved config as plain data; the schema stands in docs/json.md."""
    config = found.config
    return {
        "settings": {
            name: {"value": getattr(config, name), "origin": config.origins.get(name, "")} for name in _GLOBALS
        },
        "layers": [_layer_data(name, layer) for name, layer in config.layers.items()],
        "refused": [{"name": name, "reason": reason} for name, reason in found.facts.refused.items()],
        "tensors": [_tensor_data(entry) for entry in config.tensors],
        "warnings": [str(warning) for warning in config.warnings],
    }


def _layer_data(name: str, layer: LayerConfig) -> dict[str, Any]:
    return {
        "name": name,
        "op_type": layer.op_type,
        "enabled": layer.enabled,
        "reason": layer.reason,
        "activation": _activation_data(layer.options.activation),
        "weight": asdict(layer.options.weight, dict_factory=_without_enums),
        "migration_strength": layer.options.migration_strength,
        "origins": dict(layer.origins),
    }


def _tensor_data(entry: TensorOptions) -> dict[str, Any]:
    return {"node": entry.node, "input_index": entry.input_index, "activation": _activation_data(entry.activation)}


def _activation_data(options: ActivationOptions) -> dict[str, Any]:
    """What the algorithm looks at, and nothing else."""
    foreign = set(_OF_TRAINING)
    foreign |= {name for name, algorithm in _PARAMETER_OF.items() if algorithm is not options.algorithm}
    data = asdict(options, dict_factory=_without_enums)
    return {name: value for name, value in data.items() if name not in foreign}


_OF_TRAINING = ("clip", "fixed_min")
"""What retrain configs alone say."""
_PARAMETER_OF = {
    "max_percentile": ActivationAlgorithm.IFMR,
    "min_percentile": ActivationAlgorithm.IFMR,
    "search_start": ActivationAlgorithm.IFMR,
    "search_end": ActivationAlgorithm.IFMR,
    "search_step": ActivationAlgorithm.IFMR,
    "num_of_bins": ActivationAlgorithm.HFMG,
}


def _without_enums(pairs: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    return {name: value.value if isinstance(value, Enum) else value for name, value in pairs}
