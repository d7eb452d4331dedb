"""The choices of one layer, resolved: nothing here is optional or inherited any more."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field


class ActivationAlgorithm(enum.Enum):
    """How the range of an activation is chosen."""

    MSE = "mse"
    MINMAX = "minmax"
    IFMR = "ifmr"
    PERCENTILE = "percentile"
    HFMG = "hfmg"


class WeightAlgorithm(enum.Enum):
    """How weight scales are chosen."""

    MSE = "mse"
    ARQ = "arq"


@dataclass(frozen=True, kw_only=True)
class ActivationOptions:
    """How a layer's data input is quantized.

    Attributes:
        algorithm: how the range is chosen.
        bits: width of the integers: 8 or 16.
        symmetric: without zero point.
        max_percentile: share of the values below the upper bound from which IFMR starts, (0.5, 1].
        min_percentile: share of the values above the lower bound from which IFMR starts, (0.5, 1].
        search_start: smallest factor on the bound that IFMR tries.
        search_end: where IFMR's factors end.
        search_step: step of IFMR's factors.
        num_of_bins: bins of HFMG's histogram: 1024, 2048, 4096 or 8192.
        clip: lower and upper bound where they are given; the algorithm decides nothing then.
        fixed_min: whether the lower bound is 0, whatever the values are; it is anyway behind a Relu.
    """

    algorithm: ActivationAlgorithm = ActivationAlgorithm.MSE
    bits: int = 8
    symmetric: bool = False
    max_percentile: float = 0.999999
    min_percentile: float = 0.999999
    search_start: float = 0.7
    search_end: float = 1.3
    search_step: float = 0.01
    num_of_bins: int = 4096
    clip: tuple[float, float] | None = None
    fixed_min: bool = False


@dataclass(frozen=True, kw_only=True)
class WeightOptions:
    """How a layer's weights are quantized.

    Attributes:
        algorithm: how scales are chosen.
        bits: width of the integers: 4, 6, 7 or 8.
        per_channel: one scale per output channel; None for what AMCT does with this type of layer.
    """

    algorithm: WeightAlgorithm = WeightAlgorithm.MSE
    bits: int = 8
    per_channel: bool | None = None


@dataclass(frozen=True, kw_only=True)
class LayerOptions:
    """How one layer is quantized.

    Attributes:
        activation: its data input.
        weight: its weights.
        migration_strength: exponent of the DMQ balance factors, [0.2, 0.8]; None for none.
    """

    activation: ActivationOptions = field(default_factory=ActivationOptions)
    weight: WeightOptions = field(default_factory=WeightOptions)
    migration_strength: float | None = None


@dataclass(frozen=True, kw_only=True)
class TensorOptions:
    """An input of an Add or MaxPool that is quantized to move less data.

    Attributes:
        node: name of the node.
        input_index: which of its inputs.
        activation: how it is quantized.
    """

    node: str
    input_index: int
    activation: ActivationOptions = field(default_factory=ActivationOptions)
