"""What reading and checking a record found, and the one error that lists it."""

from __future__ import annotations

from collections.abc import Iterable

from amct_onnx.errors import RecordError
from amct_onnx.findings import Finding, Severity, raise_findings

__all__ = ["Finding", "Severity", "raise_errors"]


def raise_errors(source: str, findings: Iterable[Finding], *, strict: bool = False) -> None:
    """Raise one :class:`RecordError` that lists all errors among ``findings`` (``strict``: all findings), if any."""
    raise_findings(RecordError, source, findings, strict=strict)
