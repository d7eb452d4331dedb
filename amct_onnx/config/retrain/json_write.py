"""A resolved retrain config -> the JSON text that AMCT writes."""

from __future__ import annotations

import json
from typing import Any

from amct_onnx.config.json_keys import PRECISION_MODES, VERSION
from amct_onnx.config.retrain.bounds import BITS
from amct_onnx.config.retrain.json_keys import (
    DATA_ALGORITHM,
    DATA_CONFIG,
    FILTER,
    FILTER_ALGORITHM,
    PRUNE_CONFIG,
    PRUNE_ENABLE,
    RETRAIN_ENABLE,
    SELECTIVE,
    SELECTIVE_ALGORITHM,
    WEIGHT_CONFIG,
)
from amct_onnx.config.retrain.options import DataQuant, FilterPruning, SelectivePruning, WeightQuant
from amct_onnx.config.retrain.plan import LayerRetrain, RetrainConfig

_NAMES = {bits: name for name, bits in BITS.items()}


def format_retrain_json(config: RetrainConfig) -> str:
    """The text of a JSON config: AMCT's order of keys, indent and separators, layers in alphabetical order.

    Read back, it says the same of every layer. Reasons and lines are those of the new text.
    """
    root: dict[str, Any] = {"version": VERSION}
    if config.force_fp16_quant:
        root["fakequant_precision_mode"] = PRECISION_MODES[1]
    root["batch_num"] = config.batch_num
    root.update({name: _layer(config.layers[name]) for name in sorted(config.layers)})
    return json.dumps(root, indent=4, separators=(",", ":"))


def _layer(layer: LayerRetrain) -> dict[str, Any]:
    found: dict[str, Any] = {RETRAIN_ENABLE: layer.is_quantized}
    if layer.data is not None:
        found[DATA_CONFIG] = _data(layer.data)
    if layer.weight is not None:
        found[WEIGHT_CONFIG] = _weight(layer.weight)
    pruning = layer.pruning or layer.sparsity
    # A layer that is skipped keeps others whole, too; one of which nothing is said does not.
    if pruning is not None or layer.skipped:
        found[PRUNE_ENABLE] = pruning is not None
    if pruning is not None:
        found[PRUNE_CONFIG] = _pruning(pruning)
    return found


def _data(data: DataQuant) -> dict[str, Any]:
    given = {"clip_max": data.clip_max, "clip_min": data.clip_min, "fixed_min": data.fixed_min}
    chosen = {key: value for key, value in given.items() if value is not None}
    return {"algo": DATA_ALGORITHM, **chosen, "dst_type": _NAMES[data.bits]}


def _weight(weight: WeightQuant) -> dict[str, Any]:
    return {"algo": weight.algorithm, "channel_wise": bool(weight.channel_wise), "dst_type": _NAMES[weight.bits]}


def _pruning(pruning: FilterPruning | SelectivePruning) -> dict[str, Any]:
    if isinstance(pruning, FilterPruning):
        return {
            "prune_type": FILTER,
            "algo": FILTER_ALGORITHM,
            "prune_ratio": pruning.ratio,
            "ascend_optimized": pruning.ascend_optimized,
        }
    return {
        "prune_type": SELECTIVE,
        "algo": SELECTIVE_ALGORITHM,
        "n_out_of_m_type": pruning.n_out_of_m,
        "update_freq": pruning.update_freq,
    }
