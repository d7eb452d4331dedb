"""What layers are looked at and fitted on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from amct_onnx.analyse.walk import Progress


@dataclass(frozen=True)
class FittingData:
    """Calibration data for choosing what goes, and for fitting what stays.

    Attributes:
        data: feeds, which are walked several times; None for none.
        feeds: how many of them to use; None for all.
        seed: chooses rows of large tensors.
        progress: wraps the iterator of feeds of every walk.
    """

    data: Any = None
    feeds: int | None = None
    seed: int = 0
    progress: Progress | None = None
