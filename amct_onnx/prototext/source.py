"""A text, and where in it an offset stands."""

from __future__ import annotations

import re
from bisect import bisect_right
from functools import cached_property


class TextError(Exception):
    """The text is no protobuf text format; ``line`` and ``column`` count from 1."""

    def __init__(self, message: str, *, line: int, column: int) -> None:
        super().__init__(message)
        self.message = message
        self.line = line
        self.column = column


class Source:
    """A text with its line starts, found once when first asked for."""

    def __init__(self, text: str) -> None:
        self.text = text

    @cached_property
    def _line_starts(self) -> list[int]:
        return [0, *(match.end() for match in re.finditer("\n", self.text))]

    def line(self, offset: int) -> int:
        """Return the line, counted from 1, in which the character at ``offset`` stands."""
        return bisect_right(self._line_starts, offset)

    def error(self, offset: int, message: str) -> TextError:
        """Return a :class:`TextError` for the character at ``offset``."""
        line = self.line(offset)
        return TextError(message, line=line, column=offset - self._line_starts[line - 1] + 1)


def is_model_name(name: str) -> bool:
    """Whether a file is called like an ONNX model, given where a text is wanted."""
    return name.lower().endswith(".onnx")


def decode(data: bytes) -> str:
    """Return the text of a file's bytes without its byte order mark; raises :class:`TextError` if they are not text."""
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as fault:
        line = data.count(b"\n", 0, fault.start) + 1
        column = fault.start - (data.rfind(b"\n", 0, fault.start) + 1) + 1
        message = f"byte 0x{data[fault.start]:02x} is not UTF-8; give the text form of the file, saved as UTF-8"
        raise TextError(message, line=line, column=column) from None
    if "\0" in text:
        raise Source(text).error(text.index("\0"), "zero byte; this is a binary file, give its text form")
    return text
