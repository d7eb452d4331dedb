"""Numbers as text, for messages of every room."""

from __future__ import annotations


def counted(number: int, thing: str) -> str:
    """``1 feed``, ``4 feeds``."""
    return f"{number} {thing}" if number == 1 else f"{number} {thing}s"
