"""The rules that need no model, applied to a record."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from amct_onnx.record.complaints import Complaint
from amct_onnx.record.findings import Finding, Severity
from amct_onnx.record.layer_rules import cache_complaints, device_complaint, layer_complaints
from amct_onnx.record.model import LoadedRecord, Record
from amct_onnx.record.prune_rules import node_complaints, prune_complaints


def check_record(record: Record | LoadedRecord) -> tuple[Finding, ...]:
    """Return what breaks the rules on values: signs, ranges, types, lengths of pairs, shapes of prune records.

    Nothing is raised. Missing fields are no fault here: a record may be half written, its calibration still running;
    :func:`amct_onnx.record.validate_record` asks for them.
    """
    loaded = as_loaded(record)
    return (*_layer_findings(loaded), *_prune_findings(loaded))


def as_loaded(record: Record | LoadedRecord) -> LoadedRecord:
    """Return a record as one without line numbers, if it was not read from a text."""
    return record if isinstance(record, LoadedRecord) else LoadedRecord(record)


def placed(loaded: LoadedRecord, key: str, complaints: Iterable[Complaint]) -> Iterator[Finding]:
    """Yield complaints about one entry as findings with their lines."""
    for field, message, severity in complaints:
        yield Finding(loaded.line_of(key, field), key, message, severity)


def _layer_findings(loaded: LoadedRecord) -> Iterator[Finding]:
    for key, layer in loaded.record.layers.items():
        yield from placed(loaded, key, layer_complaints(key, layer))
        yield from placed(loaded, key, device_complaint(layer, Severity.WARNING))
    for key, cache in loaded.record.kv_cache.items():
        yield from placed(loaded, key, cache_complaints(cache))


def _prune_findings(loaded: LoadedRecord) -> Iterator[Finding]:
    seen: dict[tuple[str, str], int] = {}
    for index, prune in enumerate(loaded.record.prune):
        line = loaded.prune_lines[index] if loaded.prune_lines else None
        yield from (Finding(line, "", message) for message in prune_complaints(prune))
        for role, position, node in prune.nodes():
            line = loaded.node_lines.get((index, role, position))
            yield from (Finding(line, node.name, f"{role}: {message}") for message in node_complaints(role, node))
            if role != "consumer" and seen.setdefault((role, node.name), index) != index:
                yield Finding(line, node.name, f"{role}: it stands in an earlier prune_record, too; delete one of them")
