"""The comment lines at the top of our own records; other readers of protobuf text pass over them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum

from amct_onnx.prototext import Source, TextError

FORMAT_VERSION = 1

_MARK = re.compile(r"amct_onnx record, format ([0-9]+)")
_RUNS = re.compile(r"([0-9]+) of ([0-9]+) runs")
_SHA256 = re.compile(r"[0-9a-f]{64}")


class WeightState(Enum):
    """Whether the plan's weights follow from the source model alone, or stand in a modified model beside it."""

    RECOMPUTABLE = "recomputable"
    MODIFIED = "modified"

    @property
    def is_modified(self) -> bool:
        """Whether a modified model holds them."""
        return self is WeightState.MODIFIED


@dataclass(frozen=True)
class RecordHeader:
    """What a record says of itself.

    Attributes:
        format_version: of the header.
        source_sha256: 64 lower-case hexadecimal digits, or None where the source model is not noted.
        weights: where the plan's weights come from.
        runs: calibration runs done, and runs asked for; None for a record that no loop of runs is writing.
        faults: what went wrong in those runs.
        modified_sha256: of the modified model that holds the weights; None where it is not noted.
    """

    format_version: int = FORMAT_VERSION
    source_sha256: str | None = None
    weights: WeightState = WeightState.RECOMPUTABLE
    runs: tuple[int, int] | None = None
    faults: tuple[str, ...] = ()
    modified_sha256: str | None = None


def format_header(header: RecordHeader) -> str:
    """Return the header as comment lines."""
    lines = [f"# amct_onnx record, format {header.format_version}"]
    if header.source_sha256 is not None:
        lines.append(f"# source sha256: {header.source_sha256}")
    lines.append(f"# weights: {header.weights.value}")
    if header.modified_sha256 is not None:
        lines.append(f"# modified sha256: {header.modified_sha256}")
    if header.runs is not None:
        lines.append(f"# calibration: {header.runs[0]} of {header.runs[1]} runs")
    lines += [f"# fault: {' '.join(fault.split())}" for fault in header.faults]
    return "\n".join(lines) + "\n"


def parse_header(source: Source) -> RecordHeader | None:
    """Return the header of a record's text, or None if a foreign tool wrote it.

    Raises :class:`TextError` for a format newer than this reader, or a header line that says nothing.
    """
    comments = list(_leading_comments(source.text))
    version = next((int(mark[1]) for _, line in comments if (mark := _MARK.fullmatch(line))), None)
    if version is None:
        return None
    sha256: dict[str, str] = {}
    weights = WeightState.RECOMPUTABLE
    runs: tuple[int, int] | None = None
    faults: list[str] = []
    for number, line in comments:
        name, _, value = (part.strip() for part in line.partition(":"))
        if name in ("source sha256", "modified sha256"):
            sha256[name] = value
            if not _SHA256.fullmatch(value):
                raise TextError(f"{name} takes 64 hexadecimal digits", line=number, column=1)
        elif name == "weights":
            if value not in {state.value for state in WeightState}:
                raise TextError(f'weights is recomputable or modified, not "{value}"', line=number, column=1)
            weights = WeightState(value)
        elif name == "calibration":
            done = _RUNS.fullmatch(value)
            if done is None:
                raise TextError('calibration takes "N of M runs"', line=number, column=1)
            runs = (int(done[1]), int(done[2]))
        elif name == "fault":
            faults.append(value)
    if version > FORMAT_VERSION:
        message = f"the record has format {version}, this amct_onnx reads up to {FORMAT_VERSION}; install a newer one"
        raise TextError(message, line=1, column=1)
    own, modified = sha256.get("source sha256"), sha256.get("modified sha256")
    return RecordHeader(version, own, weights, runs, tuple(faults), modified)


def _leading_comments(text: str) -> Iterator[tuple[int, str]]:
    """Yield the number and text of each comment line that stands before the first field."""
    number, start = 1, 0
    while start < len(text):
        stop = text.find("\n", start)
        stop = len(text) if stop < 0 else stop
        line = text[start:stop].strip()
        if line.startswith("#"):
            yield number, line[1:].strip()
        elif line:
            return
        number, start = number + 1, stop + 1
