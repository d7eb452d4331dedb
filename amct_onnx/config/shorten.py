"""Numbers as AMCT keeps them."""

from __future__ import annotations

import numpy as np


def shortest(value: float) -> float:
    """The shortest decimal fraction that is the same float32 (the schema's type): 0.7 stays 0.7."""
    with np.errstate(over="ignore"):
        return float(str(np.float32(value)))
