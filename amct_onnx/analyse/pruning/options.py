"""What a caller may choose about pruning."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field

from amct_onnx.analyse.pruning.channel_sensitivity import ChannelSensitivity


class Importance(enum.Enum):
    """How channels are ranked."""

    L2 = "l2"
    """Norm of a channel's weights, as AMCT's balanced_l2_norm_filter_prune; needs no data."""
    BN_SCALE = "bn_scale"
    """``|gamma|`` of the BatchNormalization behind each layer; needs no data."""
    ENERGY = "energy"
    """Variance of a channel on calibration data, times what its readers make of it."""
    TAYLOR = "taylor"
    """First-order Taylor expansion of what its readers' results lose on calibration data, not refitted."""
    RECONSTRUCTION = "reconstruction"
    """What its readers' results lose on calibration data once they are refitted, one channel after the other."""

    @property
    def needs_data(self) -> bool:
        """Whether weights alone do not tell."""
        return self not in (Importance.L2, Importance.BN_SCALE)


@dataclass(frozen=True)
class LayerPruning:
    """How much of a layer goes.

    Attributes:
        ratio: share of its output channels, above 0 and below 1.
        ascend_optimized: leave a multiple of 16.
    """

    ratio: float
    ascend_optimized: bool = False


@dataclass(frozen=True, kw_only=True)
class SearchGoal:
    """How much of the whole model goes, wherever it costs least.

    Attributes:
        saving: share of the model's multiply-adds, above 0 and below 1.
        alignment: a multiple of which every layer keeps; runtimes' fast convolutions want 8 or 16.
        most: share of a layer's channels that may go at most.
        feeds: how many feeds losses are estimated and measured on; None for all.
    """

    saving: float
    alignment: int = 8
    most: float = 0.75
    feeds: int | None = None


@dataclass(frozen=True, kw_only=True)
class PruneOptions:
    """Choices about pruning a model.

    Attributes:
        default: for layers that `layers` does not name; None leaves them whole.
        layers: layer name -> its own choice.
        skip: layer name -> why all of its channels stay.
        importance: how channels are ranked.
        search: in place of `default`: how much has to go, of layers that `layers` does not name.
    """

    default: LayerPruning | None = None
    layers: Mapping[str, LayerPruning] = field(default_factory=dict)
    skip: Mapping[str, str] = field(default_factory=dict)
    importance: Importance | ChannelSensitivity = Importance.L2
    search: SearchGoal | None = None

    def of(self, layer: str) -> LayerPruning | None:
        """The choice for one layer."""
        return self.layers.get(layer, self.default)
