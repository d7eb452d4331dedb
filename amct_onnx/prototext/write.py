"""Literals of protobuf text."""

from __future__ import annotations

import struct
from contextlib import suppress

_ESCAPES = {code: f"\\{code:03o}" for code in (*range(32), 127)}
_ESCAPES |= {ord("\t"): r"\t", ord("\n"): r"\n", ord("\r"): r"\r", ord('"'): r"\"", ord("'"): r"\'", ord("\\"): r"\\"}
_FLOAT32 = struct.Struct("<f")


def quote(text: str) -> str:
    """A string literal."""
    return f'"{text.translate(_ESCAPES)}"'


def shortest(value: float) -> str:
    """Return the shortest of the roundings to 6, 7, 8 or 9 digits that reads back as the same float32."""
    for digits in (6, 7, 8):
        rounded = float(f"{value:.{digits}g}")
        with suppress(OverflowError):
            if _FLOAT32.unpack(_FLOAT32.pack(rounded))[0] == value:
                return str(rounded)
    return str(float(f"{value:.9g}"))
