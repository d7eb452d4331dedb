"""The outcome of 4:2 sparsity, in memory and on disk."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from amct_onnx.api.result import TrialResult
from amct_onnx.api.structure_files import StructureResult
from amct_onnx.config.retrain.write import format_sparsity_config
from amct_onnx.passes.base import Refusal

ENDINGS = {"sparse": "sparse_model.onnx", "record": "record.txt"}
"""Kind of file -> how its name ends behind the prefix."""


@dataclass(frozen=True)
class SparseSummary:
    """One layer in the report.

    Attributes:
        name: the layer.
        op_type: its ONNX operator.
        weights: how many weights it has.
        zeros: how many of them are zero.
        is_compensated: whether the others make up for those that went.
        reason: why they do not, where they were to; empty elsewhere.
        shares_with: the first layer that reads the same weight, if it is another; else empty.
        lost: share of the variance of the results wanted of it that it does not give, on the data; None where nothing
            makes up for what went.
    """

    name: str
    op_type: str
    weights: int
    zeros: int
    is_compensated: bool = False
    reason: str = ""
    shares_with: str = ""
    lost: float | None = None


@dataclass(frozen=True)
class SparsifyReport:
    """What was done.

    Attributes:
        layers: the layers that were thinned out, in graph order.
        refusals: the others, and why.
        notes: what a user should know.
        trials: how the sparse model did beside the float model.
        saving: share of the model's multiply-adds that zeros save; None where sizes were not looked at.
    """

    layers: tuple[SparseSummary, ...]
    refusals: tuple[Refusal, ...]
    notes: tuple[str, ...] = ()
    trials: tuple[TrialResult, ...] = ()
    saving: float | None = None

    @property
    def is_fitted(self) -> bool:
        """Whether weights make up for those that went."""
        return any(layer.is_compensated for layer in self.layers)

    @property
    def weights(self) -> int:
        """How many weights all layers have, those that several read counted once."""
        return sum(layer.weights for layer in self.layers if not layer.shares_with)

    @property
    def zeros(self) -> int:
        """How many of them are zero."""
        return sum(layer.zeros for layer in self.layers if not layer.shares_with)

    def to_dict(self) -> dict[str, Any]:
        """The report as plain data."""
        return asdict(self)


@dataclass(frozen=True)
class SparsifyResult(StructureResult[SparsifyReport]):
    """A sparse model and its record, in memory."""

    endings = ENDINGS

    def config_text(self) -> str:
        """A simple config that thins out the same layers; which of their weights go is then chosen anew."""
        return format_sparsity_config(
            [layer.name for layer in self.report.layers], [refusal.node for refusal in self.report.refusals]
        )
