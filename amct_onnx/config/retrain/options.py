"""What a retrain config chooses about a layer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias


@dataclass(frozen=True, kw_only=True)
class FilterPruning:
    """Output channels go (``balanced_l2_norm_filter_prune``).

    Attributes:
        ratio: share of them, above 0 and below 1.
        ascend_optimized: whether a multiple of 16 stays.
    """

    ratio: float
    ascend_optimized: bool = True


@dataclass(frozen=True, kw_only=True)
class SelectivePruning:
    """Of every four weights two become zero (``l1_selective_prune``).

    Attributes:
        n_out_of_m: the pattern.
        update_freq: batches of training after which they are chosen anew; 0 for once.
    """

    n_out_of_m: str = "M4N2"
    update_freq: int = 0


Pruning: TypeAlias = FilterPruning | SelectivePruning


@dataclass(frozen=True, kw_only=True)
class DataQuant:
    """How training quantizes a layer's input (``ulq_quantize``).

    Attributes:
        bits: width.
        clip_max, clip_min: where the learned bounds begin; None: where calibration puts them.
        fixed_min: whether the lower bound is 0 and not learned; None: behind a Relu.
    """

    bits: int = 8
    clip_max: float | None = None
    clip_min: float | None = None
    fixed_min: bool | None = None


@dataclass(frozen=True, kw_only=True)
class WeightQuant:
    """How training quantizes a layer's weights.

    Attributes:
        algorithm: ``arq_retrain`` or ``ulq_retrain``.
        bits: width.
        channel_wise: whether each output channel has a scale; None: where its type allows it.
    """

    algorithm: str
    bits: int = 8
    channel_wise: bool | None = None
