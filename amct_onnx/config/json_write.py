"""A resolved config -> the JSON text that AMCT writes."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from amct_onnx.config.json_keys import VERSION
from amct_onnx.config.options import ActivationAlgorithm, ActivationOptions, TensorOptions, WeightAlgorithm
from amct_onnx.config.quant_config import LayerConfig, QuantConfig

_WEIGHT_NAMES = {WeightAlgorithm.ARQ: "arq_quantize", WeightAlgorithm.MSE: "mse"}


def format_json(config: QuantConfig) -> str:
    """The text of a JSON config: AMCT's order of keys, indent and separators, layers in alphabetical order."""
    root: dict[str, Any] = {
        "version": VERSION,
        "batch_num": config.batch_num,
        "activation_offset": config.activation_offset,
        "joint_quant": config.joint_quant,
        "do_fusion": config.do_fusion,
    }
    if config.force_fp16_quant:
        root["fakequant_precision_mode"] = "FORCE_FP16_QUANT"
    root["skip_fusion_layers"] = list(config.skip_fusion_layers)
    if config.tensors:
        root["tensor_quantize"] = [_tensor(entry) for entry in config.tensors]
    root.update({name: _layer(config.layers[name]) for name in sorted(config.layers)})
    return json.dumps(root, indent=4, separators=(",", ":"))


def _layer(layer: LayerConfig) -> dict[str, Any]:
    found: dict[str, Any] = {"quant_enable": layer.enabled}
    if layer.options.migration_strength is not None:
        found["dmq_balancer_param"] = layer.options.migration_strength
    found["activation_quant_params"] = _activation(layer.options.activation)
    weight = layer.options.weight
    found["weight_quant_params"] = {
        "num_bits": weight.bits,
        "channel_wise": bool(weight.per_channel),
        "wts_algo": _WEIGHT_NAMES[weight.algorithm],
    }
    return found


def _tensor(entry: TensorOptions) -> dict[str, Any]:
    return {
        "layer_name": entry.node,
        "input_index": entry.input_index,
        "activation_quant_params": _activation(entry.activation),
    }


def _activation(options: ActivationOptions) -> dict[str, Any]:
    parameters = _PARAMETERS.get(options.algorithm, _none)(options)
    return {"num_bits": options.bits, **parameters, "asymmetric": not options.symmetric}


def _ifmr(options: ActivationOptions) -> dict[str, Any]:
    return {
        "max_percentile": options.max_percentile,
        "min_percentile": options.min_percentile,
        "search_range": [options.search_start, options.search_end],
        "search_step": options.search_step,
        "act_algo": "ifmr",
    }


def _hfmg(options: ActivationOptions) -> dict[str, Any]:
    return {"act_algo": "hfmg", "num_of_bins": options.num_of_bins}


def _none(options: ActivationOptions) -> dict[str, Any]:
    return {"act_algo": options.algorithm.value}


_PARAMETERS: Mapping[ActivationAlgorithm, Callable[[ActivationOptions], dict[str, Any]]] = {
    ActivationAlgorithm.IFMR: _ifmr,
    ActivationAlgorithm.HFMG: _hfmg,
}
