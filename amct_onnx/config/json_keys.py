"""The keys of the JSON config: where each stands, what it holds, which setting it gives."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from amct_onnx.config.options import ActivationAlgorithm, WeightAlgorithm
from amct_onnx.config.request import ACTIVATION_BITS, ADA, ASYMMETRIC, NUQ, PER_CHANNEL, WEIGHT_BITS

VERSION = 1
ROOT_KEYS = (
    "version",
    "batch_num",
    "activation_offset",
    "joint_quant",
    "do_fusion",
    "fakequant_precision_mode",
    "skip_fusion_layers",
    "tensor_quantize",
)
LAYER_KEYS = ("quant_enable", "dmq_balancer_param", "activation_quant_params", "weight_quant_params")
TENSOR_KEYS = ("layer_name", "input_index", "activation_quant_params")
PRECISION_MODES = ("DEFAULT", "FORCE_FP16_QUANT")


@dataclass(frozen=True)
class Key:
    """A key: the type of its value, and the setting it gives (two for a pair of numbers)."""

    kind: type
    settings: tuple[str, ...]


_IFMR = {
    "max_percentile": Key(float, ("activation.max_percentile",)),
    "min_percentile": Key(float, ("activation.min_percentile",)),
    "search_range": Key(list, ("activation.search_start", "activation.search_end")),
    "search_step": Key(float, ("activation.search_step",)),
}
_HFMG = {"num_of_bins": Key(int, ("activation.num_of_bins",))}
_ADA = {
    "reg_param": Key(float, ("ada.reg_param",)),
    "warm_start": Key(float, ("ada.warm_start",)),
    "num_iteration": Key(int, ("ada.num_iteration",)),
    "beta_range": Key(list, ("ada.beta_start", "ada.beta_end")),
}
_NUQ = {
    "num_steps": Key(int, ("nuq.num_steps",)),
    "num_of_iteration": Key(int, ("nuq.num_of_iteration",)),
}

ACTIVATION_KEYS: Mapping[str, Key] = {
    "num_bits": Key(int, (ACTIVATION_BITS,)),
    **_IFMR,
    **_HFMG,
    "asymmetric": Key(bool, (ASYMMETRIC,)),
}
WEIGHT_KEYS: Mapping[str, Key] = {
    "num_bits": Key(int, (WEIGHT_BITS,)),
    "channel_wise": Key(bool, (PER_CHANNEL,)),
    **_ADA,
    **_NUQ,
}
# mse, minmax and percentile are ours; AMCT knows the others.
ACTIVATION_ALGORITHMS: Mapping[str, ActivationAlgorithm] = {member.value: member for member in ActivationAlgorithm}
WEIGHT_ALGORITHMS: Mapping[str, WeightAlgorithm] = {
    "arq_quantize": WeightAlgorithm.ARQ,
    ADA: WeightAlgorithm.MSE,
    NUQ: WeightAlgorithm.ARQ,
    "mse": WeightAlgorithm.MSE,
}
# Key -> the one algorithm that has it.
OWNERS: Mapping[str, str] = {
    **dict.fromkeys(_IFMR, "ifmr"),
    **dict.fromkeys(_HFMG, "hfmg"),
    **dict.fromkeys(_ADA, ADA),
    **dict.fromkeys(_NUQ, NUQ),
}
