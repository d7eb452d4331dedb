"""CalibrationConfig blocks of the simple config -> settings."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from amct_onnx.config.options import ActivationAlgorithm, WeightAlgorithm
from amct_onnx.config.request import (
    ACTIVATION_ALGORITHM,
    ACTIVATION_BITS,
    ADA,
    ASYMMETRIC,
    MIGRATION_STRENGTH,
    NUQ,
    PER_CHANNEL,
    WEIGHT_ALGORITHM,
    WEIGHT_BITS,
    Setting,
)
from amct_onnx.config.shorten import shortest
from amct_onnx.prototext import Block

DEFAULT_MIGRATION_STRENGTH = 0.5

# Field of CalibrationConfig -> the setting it chooses, what it chooses, and for what that stands in.
_ALGORITHMS: Mapping[str, tuple[str, ActivationAlgorithm | WeightAlgorithm, str]] = {
    "ifmr_quantize": (ACTIVATION_ALGORITHM, ActivationAlgorithm.IFMR, ""),
    "hfmg_quantize": (ACTIVATION_ALGORITHM, ActivationAlgorithm.HFMG, ""),
    "arq_quantize": (WEIGHT_ALGORITHM, WeightAlgorithm.ARQ, ""),
    ADA: (WEIGHT_ALGORITHM, WeightAlgorithm.MSE, ADA),
    NUQ: (WEIGHT_ALGORITHM, WeightAlgorithm.ARQ, NUQ),
}

# Field of an algorithm's message -> setting.
_PARAMETERS: Mapping[str, str] = {
    "search_range_start": "activation.search_start",
    "search_range_end": "activation.search_end",
    "search_step": "activation.search_step",
    "max_percentile": "activation.max_percentile",
    "min_percentile": "activation.min_percentile",
    "num_of_bins": "activation.num_of_bins",
    "asymmetric": ASYMMETRIC,
    "dst_type": ACTIVATION_BITS,
    "channel_wise": PER_CHANNEL,
    "quant_bits": WEIGHT_BITS,
    "num_iteration": "ada.num_iteration",
    "reg_param": "ada.reg_param",
    "beta_range_start": "ada.beta_start",
    "beta_range_end": "ada.beta_end",
    "warm_start": "ada.warm_start",
    "num_steps": "nuq.num_steps",
    "num_of_iteration": "nuq.num_of_iteration",
}
_BITS = {"INT8": 8, "INT16": 16}


def calibration_settings(block: Block) -> dict[str, Setting]:
    """The settings that a CalibrationConfig (or the like fields of a TensorQuantize) gives."""
    settings: dict[str, Setting] = {}
    for field, (name, algorithm, stands_for) in _ALGORITHMS.items():
        inner: Block | None = block.get(field)
        if inner is not None:
            settings[name] = Setting(algorithm, inner.line, field, stands_for)
            settings.update(plain(inner, _PARAMETERS))
    balancer: Block | None = block.get("dmq_balancer")
    if balancer is not None:
        settings[MIGRATION_STRENGTH] = Setting(DEFAULT_MIGRATION_STRENGTH, balancer.line, "dmq_balancer")
        settings.update(plain(balancer, {"migration_strength": MIGRATION_STRENGTH}))
    return settings


def plain(block: Block, names: Mapping[str, str]) -> dict[str, Setting]:
    """The scalar fields of a block by the names of their settings."""
    return {
        names[field]: Setting(_value(block.get(field)), found.line, field)
        for field, found in block.fields.items()
        if field in names
    }


def _value(value: Any) -> Any:
    if isinstance(value, float):
        return shortest(value)
    return _BITS[value] if isinstance(value, str) else value
