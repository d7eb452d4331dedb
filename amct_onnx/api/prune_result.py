"""The outcome of pruning, in memory and on disk."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from amct_onnx.analyse.cost import Cost
from amct_onnx.api.result import TrialResult
from amct_onnx.api.structure_files import StructureResult
from amct_onnx.config.retrain import FilterPruning
from amct_onnx.config.retrain.write import format_prune_config

ENDINGS = {"pruned": "pruned_model.onnx", "record": "record.txt"}
"""Kind of file -> how its name ends behind the prefix."""


@dataclass(frozen=True)
class GroupSummary:
    """One group in the report.

    Attributes:
        layers: the layers that make its channels.
        channels: how many units it has: a unit is what goes by itself.
        removed: how many of them go.
        reason: why none goes, or fewer than asked for.
        approximate: nodes that mix the channels, so that what stays changes, too.
        is_prunable: whether some of them may go.
        parameters, multiply_adds: of the layers that make and read them, before pruning.
        ascend_optimized: whether, as was asked for, a multiple of 16 channels of each layer stays.
    """

    layers: tuple[str, ...]
    channels: int
    removed: int
    reason: str = ""
    approximate: tuple[str, ...] = ()
    is_prunable: bool = False
    parameters: int = 0
    multiply_adds: int = 0
    ascend_optimized: bool = False


@dataclass(frozen=True)
class PruneReport:
    """What was done.

    Attributes:
        groups: every group, in graph order.
        before, after: what the model costs.
        notes: what a user should know.
        fitted: layers that were fitted to the float model's results again.
        losses: fitted layer -> share of the variance of the results wanted of it that it does not give, on the data.
        trials: how the pruned model did beside the float model on the first feeds; empty without data.
        sizes: inputs whose sizes the model leaves free -> the sizes that were taken, for multiply-adds, too.
    """

    groups: tuple[GroupSummary, ...]
    before: Cost
    after: Cost
    notes: tuple[str, ...] = ()
    fitted: tuple[str, ...] = ()
    losses: Mapping[str, float] = field(default_factory=dict)
    trials: tuple[TrialResult, ...] = ()
    sizes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """The report as plain data."""
        return asdict(self)


@dataclass(frozen=True)
class PruneResult(StructureResult[PruneReport]):
    """A pruned model and its record, in memory."""

    endings = ENDINGS

    def config_text(self) -> str:
        """A simple config that takes as many channels of each layer; which ones is then ranked anew."""
        layers = {
            name: FilterPruning(
                ratio=float(np.float32(group.removed / group.channels)), ascend_optimized=group.ascend_optimized
            )
            for group in self.report.groups
            if group.removed
            for name in group.layers
        }
        whole = [name for group in self.report.groups if not group.removed for name in group.layers]
        return format_prune_config(layers, whole)
