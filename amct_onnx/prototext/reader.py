"""Text -> blocks, in one walk."""

from __future__ import annotations

import re
from difflib import get_close_matches
from typing import Any

from amct_onnx.prototext.blocks import Block, Field, Problem
from amct_onnx.prototext.literals import join_broken, scalar, unquote
from amct_onnx.prototext.schema import FieldSpec, Kind, MessageSpec
from amct_onnx.prototext.source import Source, TextError

# White space and comments, written so that a text matches in one way only: no backtracking over long gaps.
_GAP = r"[ \t\r\n\f\v]*(?:#[^\n]*(?:\n[ \t\r\n\f\v]*|\Z))*"
# Patterns that end in an empty alternative always match; it stands for "none of these".
_NAME = re.compile(
    rf"{_GAP}(?:(?P<name>[A-Za-z_][A-Za-z0-9_]*){_GAP}(?P<colon>:?){_GAP}|(?P<close>[}}>])|(?P<end>\Z)|)"
)
_SCALAR = r"-?[0-9A-Za-z_.][0-9A-Za-z_.+-]*"
_VALUE = re.compile(rf"{_GAP}(?:(?P<scalar>{_SCALAR})|(?P<open>[{{<])|(?P<list>\[)|(?P<quote>[\"'])|)")
_STRING = re.compile(r""""([^"\\]*(?:\\.[^"\\]*)*)"|'([^'\\]*(?:\\.[^'\\]*)*)'""", re.DOTALL)
_NEXT_STRING = re.compile(rf"{_GAP}(?=[\"'])")
_SEPARATOR = re.compile(rf"{_GAP}[;,]")
_LIST_NEXT = re.compile(rf"{_GAP}(?:(?P<comma>,)|(?P<close>\])|)")
_LIST_END = re.compile(rf"{_GAP}\]")
_SKIP = re.compile(rf"{_GAP}(?:(?P<quote>[\"'])|(?P<open>[{{<\[])|(?P<close>[}}>\]])|(?P<other>[^\s#])|)")
_WORD = re.compile(r"\w{1,40}|.", re.DOTALL)
_CLOSERS = {"{": "}", "<": ">"}

# Published listings break a literal before and after its text. One over more lines has lost its closing quote.
_MOST_BREAKS = 2


def read_text(source: Source, spec: MessageSpec) -> Block:
    """Read a whole text as one message.

    Unknown fields, values of the wrong kind, doubled fields and the like become problems of the blocks they stand in.
    Raises :class:`TextError` at the first place where the text is no text format.
    """
    return _Reader(source).block(spec, start=0, closer="")


class _Reader:
    """The text and the place reached in it."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self.text = source.text
        self.at = 0
        self.unknown: dict[tuple[str, str], str] = {}  # what to say of an unknown field, by message and name
        self.broken_literal = (-1, -1)  # where the last literal over several lines began and ended

    def block(self, spec: MessageSpec, *, start: int, closer: str) -> Block:
        """Read fields up to ``closer``, or to the end of the text where that is empty."""
        block = Block(self.source.line(start))
        given: set[str] = set()  # a field whose value does not fit is faulty, not missing
        while True:
            match = self._next(_NAME)
            if name := match["name"]:
                given.add(name)
                self._field(block, spec, name, match)
                continue
            if match["close"] and match["close"] == closer:
                break
            if match["end"] is not None:
                if not closer:
                    break
                raise self._fault(start, f'the "{self._word(start)}" opened here is never closed; the file is cut off')
            if match["close"]:
                raise self._fault(match.start("close"), f'this "{match["close"]}" does not close what was opened')
            raise self._fault(self.at, "expected the name of a field")
        missing = [field.name for field in spec.fields.values() if field.required and field.name not in given]
        block.problems.extend(Problem(block.line, f"{name} is missing and must be given") for name in missing)
        return block

    def _field(self, block: Block, spec: MessageSpec, name: str, match: re.Match[str]) -> None:
        start = match.start("name")
        field = spec.fields.get(name)
        if field is None:
            message = self.unknown.get((spec.name, name)) or _unknown(name, spec)
            self.unknown[spec.name, name] = message
            block.problems.append(Problem(self.source.line(start), message))
            self._skip_value()
        else:
            if field.kind is not Kind.MESSAGE and not match["colon"]:
                raise self._fault(self.at, f'expected ":" after {name}')
            self._keep(block, field, self._values(block, field, start), start)
        if separator := _SEPARATOR.match(self.text, self.at):
            self.at = separator.end()

    def _keep(self, block: Block, field: FieldSpec, values: list[Any], start: int) -> None:
        known = block.fields.get(field.name)
        if field.alternatives:
            self._replace_alternatives(block, field, start)
        if known is None:
            if values:
                block.fields[field.name] = known = Field(self.source.line(start), values)
        elif field.repeated:
            known.values.extend(values)
        elif values:
            line = self.source.line(start)
            block.problems.append(_doubled(field, known.line, line))
            block.fields[field.name] = Field(line, values)
        if known is not None and field.repeated and field.kind is Kind.STRING:
            known.lines.extend([self.source.line(start)] * len(values))

    def _replace_alternatives(self, block: Block, field: FieldSpec, start: int) -> None:
        """Drop what the block holds of the same oneof: the last counts."""
        others = [name for name in block.fields if name in field.alternatives]
        for name in others:
            line = self.source.line(start)
            message = (
                f"{field.name} takes the place of {name} on line {block.fields[name].line}: a block holds one of them "
                "and the last one counts; delete the other"
            )
            block.problems.append(Problem(line, message, warning=True))
            block.replaced[name] = block.fields.pop(name).line

    def _values(self, block: Block, field: FieldSpec, start: int) -> list[Any]:
        """Read one value, or a list in brackets; a value that does not fit becomes a problem and is left out."""
        match = self._next(_VALUE)
        if not match["list"]:
            return self._value(block, field, match, start)
        if not field.repeated:
            block.problems.append(Problem(self.source.line(start), f"{field.name} takes one value, not a list"))
        values: list[Any] = []
        if end := _LIST_END.match(self.text, self.at):
            self.at = end.end()
            return values
        while True:
            values += self._value(block, field, self._next(_VALUE), self.at)
            match = self._next(_LIST_NEXT)
            if match["close"]:
                return values if field.repeated else []
            if not match["comma"]:
                raise self._fault(self.at, f'expected "," or "]" in the list of {field.name}')

    def _value(self, block: Block, field: FieldSpec, match: re.Match[str], start: int) -> list[Any]:
        try:
            if token := match["scalar"]:
                return [scalar(field, token)]
            if match["quote"]:
                literal = self._string(block, match.start("quote"))
                return [self._quoted(field, literal)]
        except ValueError as fault:
            block.problems.append(Problem(self.source.line(self.at - 1), str(fault)))
            return []
        if not match["open"]:
            raise self._fault(self.at, f"expected {field.kind.value} for {field.name}")
        if field.message is None:
            raise self._fault(match.start("open"), f"expected {field.kind.value} for {field.name}")
        return [self.block(field.message, start=start, closer=_CLOSERS[match["open"]])]

    def _quoted(self, field: FieldSpec, literal: str) -> str | bytes:
        if field.kind in (Kind.STRING, Kind.BYTES):
            return unquote(field, literal)
        raise ValueError(f'{field.name} takes {field.kind.value}, not the string "{literal}"')

    def _string(self, block: Block, start: int) -> str:
        """Read the literals that stand side by side from ``start`` on, without their quotes, as one."""
        body = ""
        self.at = start
        following: re.Match[str] | None
        while True:
            match = _STRING.match(self.text, self.at)
            part = (match[1] or match[2] or "") if match else self.text[self.at :]
            breaks = part.count("\n")
            if match is None or breaks > _MOST_BREAKS:
                raise self._fault(self.at, "the string opened here has no closing quote on its line or the next two")
            if breaks:
                part = join_broken(part)
                self.broken_literal = (self.at, match.end())
                message = f'the string "{part}" is broken over {breaks + 1} lines; it was joined, write it on one'
                block.problems.append(Problem(self.source.line(self.at), message, warning=True))
            body += part
            self.at = match.end()
            following = _NEXT_STRING.match(self.text, self.at)
            if following is None:
                return body
            self.at = following.end()

    def _skip_value(self) -> None:
        """Pass over the value of an unknown field."""
        match = self._next(_VALUE)
        if match["scalar"]:
            return
        if match["quote"]:
            self._string(Block(0), match.start("quote"))
            return
        start = match.start("open") if match["open"] else match.start("list")
        if start < 0:
            raise self._fault(self.at, "expected a value")
        depth = 1
        while depth:
            match = self._next(_SKIP)
            if match["quote"]:
                self._string(Block(0), match.start("quote"))
            elif match["open"]:
                depth += 1
            elif match["close"]:
                depth -= 1
            elif not match["other"]:
                raise self._fault(start, f'the "{self.text[start]}" opened here is never closed; the file is cut off')

    def _next(self, pattern: re.Pattern[str]) -> re.Match[str]:
        match = pattern.match(self.text, self.at)
        if match is None:
            raise self._fault(self.at, "this cannot be read")
        self.at = match.end()
        return match

    def _word(self, offset: int) -> str:
        word = _WORD.match(self.text, offset)
        return word[0] if word else ""

    def _fault(self, offset: int, message: str) -> TextError:
        word = self._word(offset)
        if message.startswith("expected"):
            message += f", found {word!r}" if word else ", found the end of the file; it is cut off"
        opened, closed = self.broken_literal
        if closed >= 0 and "\n" not in self.text[closed:offset]:
            message += f"; the string opened on line {self.source.line(opened)} may lack its closing quote"
        return self.source.error(offset, message)


def _unknown(name: str, spec: MessageSpec) -> str:
    near = get_close_matches(name, spec.fields, n=1)
    remedy = f"did you mean {near[0]}?" if near else f"known are {', '.join(spec.fields)}"
    return f"unknown field {name}; {remedy}"


def _doubled(field: FieldSpec, first: int, second: int) -> Problem:
    where = f"{field.name} stands twice, on line {first} and on line {second}"
    if field.kind is Kind.MESSAGE:
        return Problem(second, f"{where}; a closing brace or the start of a new entry is missing between them")
    return Problem(second, f"{where}; the last one counts, delete the other", warning=True)
