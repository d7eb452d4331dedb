"""The fields of the simple config that say what happens to layers."""

from __future__ import annotations

PRUNE, DATA, WEIGHT = "prune_config", "retrain_data_quant_config", "retrain_weight_quant_config"
PARTS = (PRUNE, DATA, WEIGHT)
OF_BOTH = ("skip_layers", "skip_layer_types")
OF_PRUNING = ("regular_prune_skip_layers", "regular_prune_skip_types")
OF_QUANTIZATION = ("quant_skip_layers", "quant_skip_types")
