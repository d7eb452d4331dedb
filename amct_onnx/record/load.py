"""Text and files -> records."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from amct_onnx.errors import RecordError
from amct_onnx.proto.scale_offset_record import ScaleOffsetRecord
from amct_onnx.prototext import Block, Source, TextError, decode, is_model_name, message_spec, read_text
from amct_onnx.record.build import build_record
from amct_onnx.record.check import check_record
from amct_onnx.record.findings import raise_errors
from amct_onnx.record.header import RecordHeader, parse_header
from amct_onnx.record.model import LoadedRecord

_Result = TypeVar("_Result")


def load_record(path: str | os.PathLike[str], *, strict: bool = False) -> LoadedRecord:
    """Read a record file; see :func:`parse_record`. The path is what errors name."""
    name = os.fspath(path)
    if is_model_name(name):
        raise RecordError(f"{name} is called like a model, but a record (*_record.txt) is wanted here; swap the two")
    try:
        data = Path(path).read_bytes()
    except OSError as fault:
        raise RecordError(f"{name} cannot be read: {fault.strerror}; give the path of a record file") from fault
    return parse_record(_located(name, lambda: decode(data)), source=name, strict=strict)


def parse_record(text: str, *, source: str = "<text>", strict: bool = False) -> LoadedRecord:
    """Read the text of a record and check every rule that needs no model.

    Of a field that stands twice the last value is taken, literals broken over lines are joined, two entries of one
    key that agree count once: each is a warning in the result's ``findings``, and an error if ``strict``.

    Raises :class:`RecordError`: one that lists all faults, each with its line, layer, rule and remedy. A text that is
    no protobuf text format is refused at its first fault.
    """
    header, root = _located(source, lambda: _read(Source(text.removeprefix("\ufeff"))))
    if not root.fields and not root.problems and header is None:
        raise RecordError(f"{source} holds no record; write it again, or give the path of another file")
    loaded = build_record(root, header, source)
    raise_errors(source, loaded.findings)  # before the rules: what was misread would break them as well
    findings = (*loaded.findings, *check_record(loaded))
    raise_errors(source, findings, strict=strict)
    return replace(loaded, findings=findings)


def _read(text: Source) -> tuple[RecordHeader | None, Block]:
    # The header first: it can say that a newer format follows, which this reader may not understand.
    return parse_header(text), read_text(text, message_spec(ScaleOffsetRecord.DESCRIPTOR))


def _located(source: str, read: Callable[[], _Result]) -> _Result:
    try:
        return read()
    except TextError as fault:
        raise RecordError(f"{source}, line {fault.line}, column {fault.column}: {fault.message}") from None
