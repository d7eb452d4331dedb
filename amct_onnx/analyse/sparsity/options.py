"""What a caller may choose about 4:2 sparsity."""

from __future__ import annotations

import enum
from dataclasses import dataclass


class Selection(enum.Enum):
    """How the two of four weights that stay are chosen."""

    L1 = "l1"
    """The largest, as AMCT's l1_selective_prune; needs no data."""
    COMPENSATED = "compensated"
    """Those whose loss the others make up for best, on calibration data; the others change."""


@dataclass(frozen=True, kw_only=True)
class SparsityGoal:
    """How much of the whole model goes, wherever it costs least.

    Attributes:
        saving: share of the model's multiply-adds, above 0 and below 1; a weight that is zero saves its own.
        selection: which weights of a layer stay when its loss is measured.
    """

    saving: float
    selection: Selection
