"""What a caller may choose about 4:2 sparsity."""

from __future__ import annotations

import enum


class Selection(enum.Enum):
    """How the two of four weights that stay are chosen."""

    L1 = "l1"
    """The largest, as AMCT's l1_selective_prune; needs no data."""
    COMPENSATED = "compensated"
    """Those whose loss the others make up for best, on calibration data; the others change."""
