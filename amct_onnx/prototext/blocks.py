"""What the reader returns: the fields of a message with their values and places."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Problem:
    """Something wrong at ``line``; a ``warning`` has a defined reading that was taken, anything else has none."""

    line: int
    message: str
    warning: bool = False


@dataclass(slots=True)
class Field:
    """Values of one field in the order of the text, and the line of the first (of the last if not repeated).

    ``lines`` has the line of each value of a repeated field of strings, and is empty for other fields.
    """

    line: int
    values: list[Any]
    lines: list[int] = field(default_factory=list)


@dataclass(slots=True)
class Block:
    """One message: ``{...}`` in the text, or the whole of it.

    A value is a float, int, bool, str, bytes, the name (str) of an enum value, or a Block. A field that is not
    repeated has exactly one value: the last the text gives. ``replaced`` has the fields whose place another one of the
    same oneof took, with their lines.
    """

    line: int
    fields: dict[str, Field] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)
    replaced: dict[str, int] = field(default_factory=dict)

    def get(self, name: str) -> Any:
        """Return the value of a field that is not repeated, or None if the text does not give it."""
        found = self.fields.get(name)
        return None if found is None else found.values[0]

    def all(self, name: str) -> list[Any]:
        """Return the values of a repeated field; empty if the text gives none."""
        found = self.fields.get(name)
        return [] if found is None else found.values

    def line_of(self, name: str) -> int | None:
        """Return the line of a field, None if the text does not give it."""
        found = self.fields.get(name)
        return None if found is None else found.line

    def all_problems(self) -> Iterator[Problem]:
        """Yield the problems of this block and of all blocks inside it."""
        yield from self.problems
        for found in self.fields.values():
            for value in found.values:
                if not isinstance(value, Block):
                    break
                yield from value.all_problems()
