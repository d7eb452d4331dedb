"""Data as callers give it, for what walks over it several times."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from amct_onnx.analyse.feed_files import find_feeds
from amct_onnx.analyse.feeds import walks_once
from amct_onnx.errors import ArgumentError, DataError


def walkable(data: Any, what: str) -> Any:
    """The data, a path as the feeds found there.

    Args:
        data: feeds; None for none.
        what: the work, for the error.

    Raises:
        DataError: it can be walked only once, or nothing is found.
    """
    if isinstance(data, str | os.PathLike):
        data = find_feeds(Path(data))
    if walks_once(data):
        raise DataError(f"{what} walks over the data several times, and a generator can be walked once; give a list")
    return data


def check_share(name: str, value: float) -> None:
    """Raise :class:`ArgumentError` for an argument that is no share of something that may go."""
    if not 0 < value < 1:
        raise ArgumentError(f"{{{name}}} is {value}; give a share above 0 and below 1")
