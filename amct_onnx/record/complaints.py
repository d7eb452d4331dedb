"""What a rule says when it is broken, before it is known where that stands."""

from __future__ import annotations

from typing import NamedTuple

from amct_onnx.record.findings import Severity


class Complaint(NamedTuple):
    """A broken rule: ``field`` is the field at fault, None if it is the whole entry or one that is missing."""

    field: str | None
    message: str
    severity: Severity = Severity.ERROR
