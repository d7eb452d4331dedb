"""JSON text -> values that know their lines.

Python's own decoder keeps no places and takes the last of two equal keys. JSON's grammar is small; this reads it with
the line of every value, and reports a key that stands twice in one object.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from json import JSONDecodeError, JSONDecoder
from typing import Any

from amct_onnx.prototext import Source

_BLANK = re.compile(r"[ \t\r\n]*")
_NUMBER = re.compile(r"(-?(?:0|[1-9]\d*))(\.\d+)?([eE][+-]?\d+)?")
_WORD = re.compile(r"[A-Za-z]+")
_WORDS = {"true": True, "false": False, "null": None}
_STRINGS = JSONDecoder()
_DEEPEST = 20
_MOST_DIGITS = 30


@dataclass(frozen=True)
class Value:
    """One value: ``data`` is a dict or list of values, a str, int, float, bool or None.

    ``doubled`` lists the keys that stand more than once in an object, with the lines of the repetitions.
    """

    line: int
    data: Any
    doubled: tuple[tuple[str, int], ...] = field(default=(), compare=False)


def read_json(source: Source) -> Value:
    """Read a whole text; raises :class:`amct_onnx.prototext.TextError` at the first place where it is no JSON."""
    reader = _Reader(source)
    value = reader.value(0)
    reader.blank()
    if reader.at < len(source.text):
        raise source.error(reader.at, "the text goes on after the end of its object; delete what follows")
    return value


class _Reader:
    """The text and the place reached in it."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self.text = source.text
        self.at = 0

    def blank(self) -> None:
        match = _BLANK.match(self.text, self.at)
        self.at = match.end() if match else self.at

    def value(self, depth: int) -> Value:
        self.blank()
        if depth > _DEEPEST:
            raise self.source.error(self.at, f"values are nested more than {_DEEPEST} deep; this is no quant config")
        line = self.source.line(self.at)
        beginning = self.text[self.at : self.at + 1]
        if beginning == "{":
            return self._object(line, depth)
        if beginning == "[":
            return Value(line, self._list(depth))
        if beginning == '"':
            return Value(line, self._string())
        return Value(line, self._number_or_word())

    def _object(self, line: int, depth: int) -> Value:
        members: dict[str, Value] = {}
        doubled: list[tuple[str, int]] = []
        self.at += 1
        while not self._closes("}", first=not members):
            if self.text[self.at : self.at + 1] != '"':
                raise self._expected("a key in double quotes")
            key_line = self.source.line(self.at)
            key = self._string()
            self.blank()
            self._take(":")
            value = self.value(depth + 1)
            if key in members:
                doubled.append((key, key_line))
            members[key] = Value(key_line, value.data, value.doubled)
        return Value(line, members, tuple(doubled))

    def _list(self, depth: int) -> list[Value]:
        values: list[Value] = []
        self.at += 1
        while not self._closes("]", first=not values):
            values.append(self.value(depth + 1))
        return values

    def _closes(self, closer: str, *, first: bool) -> bool:
        """Pass over a comma (but not before the first member), or the closing bracket."""
        self.blank()
        if self.text[self.at : self.at + 1] == closer:
            self.at += 1
            return True
        if not first:
            self._take(",", f'"," or "{closer}"')
            self.blank()
        return False

    def _take(self, character: str, expected: str = "") -> None:
        if self.text[self.at : self.at + 1] != character:
            raise self._expected(expected or f'"{character}"')
        self.at += 1

    def _string(self) -> str:
        try:
            text, self.at = _STRINGS.raw_decode(self.text, self.at)
        except JSONDecodeError as fault:
            raise self.source.error(self.at, f"the string that begins here is not legal: {fault.msg}") from None
        return str(text)

    def _number_or_word(self) -> Any:
        if number := _NUMBER.match(self.text, self.at):
            if number.end() - number.start() > _MOST_DIGITS:
                raise self.source.error(self.at, f"a number of more than {_MOST_DIGITS} characters; shorten it")
            self.at = number.end()
            whole, fraction, exponent = number.groups()
            return float(number[0]) if fraction or exponent else int(whole)
        word = _WORD.match(self.text, self.at)
        if word is None or word[0] not in _WORDS:
            raise self._expected("a value")
        self.at = word.end()
        return _WORDS[word[0]]

    def _expected(self, what: str) -> Exception:
        word = re.match(r"\w{1,40}|.", self.text[self.at :], re.DOTALL)
        found = repr(word[0]) if word else "the end of the file; it is cut off"
        return self.source.error(self.at, f"expected {what}, found {found}")
