"""What reading and checking a text file found, and the one error that lists it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum

from amct_onnx.errors import AmctError

_MOST_LISTED = 100
_MOST_NAMED = 3
_MOST_GROUPS = 5


class Severity(Enum):
    """An error makes the file unusable; a warning has a defined reading, which was taken."""

    WARNING = "warning"
    ERROR = "error"


@dataclass(frozen=True)
class Finding:
    """One finding: ``line`` counts from 1, None where no file was read; ``entry`` names a layer, or is empty.

    ``message`` says the rule and the remedy.
    """

    line: int | None
    entry: str
    message: str
    severity: Severity = Severity.ERROR

    def __str__(self) -> str:
        where = [f"line {self.line}"] if self.line is not None else []
        where += [f'"{self.entry}"'] if self.entry else []
        return f"{', '.join(where)}: {self.message}" if where else self.message


def raise_findings(kind: type[AmctError], source: str, findings: Iterable[Finding], *, strict: bool = False) -> None:
    """Raise one error of ``kind`` that lists all errors among ``findings`` (``strict``: all findings), if any."""
    faults = [finding for finding in findings if strict or finding.severity is Severity.ERROR]
    if len(faults) == 1:
        raise kind(f"{source}, {faults[0]}")
    if faults:
        listed = [f"  {fault}" for fault in faults[:_MOST_LISTED]]
        if len(faults) > _MOST_LISTED:
            listed.append(f"  and {len(faults) - _MOST_LISTED} more")
        raise kind("\n".join([f"{source} has {len(faults)} faults:", *listed]))


def by_reason(reasons: Iterable[tuple[str, str]]) -> str:
    """``first, second and 3 more: why; ...`` in one line, from pairs of a name and why; the same reason stands once."""
    groups: dict[str, list[str]] = {}
    for name, reason in reasons:
        groups.setdefault(reason, []).append(name)
    listed = []
    for reason, names in list(groups.items())[:_MOST_GROUPS]:
        more = f" and {len(names) - _MOST_NAMED} more" if len(names) > _MOST_NAMED else ""
        listed.append(f"{', '.join(names[:_MOST_NAMED])}{more}: {reason}")
    if len(groups) > _MOST_GROUPS:
        listed.append(f"{len(groups) - _MOST_GROUPS} further reasons")
    return "; ".join(listed)
