"""How many channels stay."""

from __future__ import annotations

import math

ALIGNMENT = 16
"""Channels that an Ascend device computes at once."""
USUAL_ALIGNMENT = 8
"""Channels that fast convolutions of runtimes on CPUs compute at once, or twice as many."""


def channels_kept(count: int, ratio: float, *, aligned: bool = False, groups: int = 1) -> int:
    """Channels that stay of `count`.

    ``count - round(count * ratio)``, halves rounded to even, as AMCT's balanced L2-norm pruning has it; a multiple of
    `groups`, and when aligned of 16 as well, rounded up and never above `count`.

    Args:
        count: number of channels, a multiple of `groups`.
        ratio: share that goes, above 0 and below 1.
        aligned: whether a multiple of 16 stays.
        groups: equal blocks, from each of which as many go.
    """
    kept = count - round(count * ratio)
    if aligned:
        step = math.lcm(ALIGNMENT, groups)
        kept = max(step, -(-kept // step) * step)
    elif groups > 1:
        kept = max(groups, kept // groups * groups)
    return min(count, max(1, kept))
