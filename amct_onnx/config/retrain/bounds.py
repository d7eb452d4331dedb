"""The values that single fields of a retrain config may have, whatever the layer and the form of the text."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import inf
from typing import NamedTuple


class _Bound(NamedTuple):
    """Which values are legal, and that in words."""

    holds: Callable[[float], bool]
    words: str


_BOUNDS: Mapping[str, _Bound] = {
    "batch_num": _Bound(lambda value: value >= 1, "it is at least 1"),
    "prune_ratio": _Bound(lambda value: 0 < value < 1, "it lies above 0 and below 1"),
    "clip_max": _Bound(lambda value: 0 < value < inf, "it is a number above 0"),
    "clip_min": _Bound(
        lambda value: -inf < value < 0, "it is a number below 0 (fixed_min: true lets the range begin at 0)"
    ),
    "update_freq": _Bound(lambda value: value >= 0, "it is 0 or more"),
}
BITS: Mapping[str, int] = {"INT4": 4, "INT8": 8, "INT16": 16}
"""Values of ``dst_type``, and the widths they stand for."""
_WIDTHS: Mapping[str, tuple[str, ...]] = {"activations": ("INT8", "INT16"), "weights": ("INT4", "INT8")}


def out_of_bounds(name: str, value: float | None) -> str:
    """What is wrong with the value of a field; empty where nothing is, or where it is not given."""
    if value is None or _BOUNDS[name].holds(value):
        return ""
    return f"{name} is {value:g}, but {_BOUNDS[name].words}; correct it"


def no_width(dst_type: str | None, what: str) -> str:
    """What is wrong with a ``dst_type``; empty where nothing is, or where it is not given.

    Args:
        dst_type: what the text says.
        what: ``activations`` or ``weights``. AMCT pairs INT8 activations with INT4 and INT8 weights, INT16 with INT8.
    """
    known = _WIDTHS[what]
    if dst_type is None or dst_type in known:
        return ""
    return f"dst_type is {dst_type}, but {what} are quantized to {' or '.join(known)}; correct it"
