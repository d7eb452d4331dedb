"""Numbers and names as text."""

from __future__ import annotations

from collections.abc import Iterable

_NAMED = 3


def counted(number: int, thing: str) -> str:
    """``1 feed``, ``4 feeds``."""
    return f"{number} {thing}" if number == 1 else f"{number} {thing}s"


def few(names: Iterable[str]) -> str:
    """The first names, and how many more there are."""
    found = list(names)
    more = f" and {len(found) - _NAMED} more" if len(found) > _NAMED else ""
    return ", ".join(found[:_NAMED]) + more
