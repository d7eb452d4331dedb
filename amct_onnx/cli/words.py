"""Numbers and names as text."""

from __future__ import annotations

import re
from collections.abc import Hashable, Iterable, Iterator
from typing import TypeVar

from amct_onnx.wording import counted

_NAMED = 3
_LINE = re.compile(r"(.*), line (\d+)", re.DOTALL)
_NUMBER = re.compile(r"\d[\d.,]*(?:e[+-]?\d+)?")

Key = TypeVar("Key", bound=Hashable)


def of_all(number: int, whole: int, thing: str) -> str:
    """``1 of 4 layers are``, ``1 of 1 layer is``."""
    return f"{number} of {counted(whole, thing)} {'is' if whole == 1 else 'are'}"


def few(names: Iterable[str]) -> str:
    """The first names, and how many more there are."""
    found = list(names)
    more = f" and {len(found) - _NAMED} more" if len(found) > _NAMED else ""
    return ", ".join(found[:_NAMED]) + more


def together(found: Iterable[tuple[str, str]]) -> Iterator[tuple[str, list[str]]]:
    """Reasons alike as one: name and reason of each -> reason, all names.

    Those that differ in the line of a file alone are alike, too: ``skip_layers, lines 3 to 9``.
    """
    groups: dict[tuple[str, bool], list[tuple[str, int]]] = {}
    for name, reason in found:
        match = _LINE.fullmatch(reason)
        what, line = (match[1], int(match[2])) if match else (reason, 0)
        groups.setdefault((what, match is not None), []).append((name, line))
    for (what, has_line), members in groups.items():
        lines = {line for _, line in members}
        yield f"{what}{_lines(lines)}" if has_line else what, [name for name, _ in members]


def _lines(lines: set[int]) -> str:
    first, last = min(lines), max(lines)
    return f", line {first}" if first == last else f", lines {first} to {last}"


def grouped(found: Iterable[tuple[Key, str, str]]) -> Iterator[tuple[Key, str, list[str]]]:
    """Sentences that differ in numbers alone, as one: key, sentence and name of each -> key, sentence, all names.

    Where the numbers differ, those of the first stand for all, and the sentence says so.
    """
    groups: dict[tuple[Key, str], list[tuple[str, str]]] = {}
    for key, sentence, name in found:
        groups.setdefault((key, _NUMBER.sub("#", sentence)), []).append((sentence, name))
    for (key, _), members in groups.items():
        first, names = members[0][0], [name for _, name in members]
        is_same = all(sentence == first for sentence, _ in members)
        yield key, first if is_same else f"{first} (numbers of the first)", names
