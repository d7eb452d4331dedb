"""The keys of a retrain config in JSON."""

from __future__ import annotations

from collections.abc import Mapping

ROOT_KEYS = ("version", "fakequant_precision_mode", "batch_num")
RETRAIN_ENABLE, DATA_CONFIG, WEIGHT_CONFIG = "retrain_enable", "retrain_data_config", "retrain_weight_config"
PRUNE_ENABLE, PRUNE_CONFIG = "regular_prune_enable", "regular_prune_config"
ENABLE_KEYS = (RETRAIN_ENABLE, PRUNE_ENABLE)
LAYER_KEYS = (RETRAIN_ENABLE, DATA_CONFIG, WEIGHT_CONFIG, PRUNE_ENABLE, PRUNE_CONFIG)

DATA_KEYS: Mapping[str, type] = {"algo": str, "clip_max": float, "clip_min": float, "fixed_min": bool, "dst_type": str}
WEIGHT_KEYS: Mapping[str, type] = {"algo": str, "channel_wise": bool, "dst_type": str}
FILTER_KEYS: Mapping[str, type] = {"prune_type": str, "algo": str, "prune_ratio": float, "ascend_optimized": bool}
SELECTIVE_KEYS: Mapping[str, type] = {"prune_type": str, "algo": str, "n_out_of_m_type": str, "update_freq": int}

DATA_ALGORITHM = "ulq_quantize"
WEIGHT_ALGORITHMS = ("arq_retrain", "ulq_retrain")
FILTER, FILTER_ALGORITHM = "filter_prune", "balanced_l2_norm_filter_prune"
SELECTIVE, SELECTIVE_ALGORITHM = "selective_prune", "l1_selective_prune"
N_OUT_OF_M = ("M4N2",)
