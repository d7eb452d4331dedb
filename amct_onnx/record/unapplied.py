"""What a record may ask for and no pass does yet: an error where its scales would be wrong without it."""

from __future__ import annotations

from collections.abc import Iterator

from amct_onnx.record.check import placed
from amct_onnx.record.complaints import Complaint
from amct_onnx.record.findings import Finding, Severity
from amct_onnx.record.layers import LayerRecord
from amct_onnx.record.model import LoadedRecord


def unapplied_findings(loaded: LoadedRecord) -> Iterator[Finding]:
    """Yield what of a record is not applied."""
    for name, entry in loaded.record.layers.items():
        yield from placed(loaded, name, _unapplied_fields(entry))
    for name in loaded.record.kv_cache:
        yield from placed(loaded, name, [Complaint(None, "quantizing caches is not applied", Severity.WARNING)])
    if loaded.record.prune:
        line = loaded.prune_lines[0] if loaded.prune_lines else None
        yield Finding(
            line, "", "pruning is not applied, and scales of a pruned model fit no other: delete prune_record"
        )


def _unapplied_fields(entry: LayerRecord) -> Iterator[Complaint]:
    if entry.cluster:
        yield Complaint("cluster", "clustered weights are not applied: calibrate without clustering")
    if entry.fakequant_precision_mode == "FORCE_FP16_QUANT":
        message = "the fake-quant form computes in float32 all the same"
        yield Complaint("fakequant_precision_mode", message, Severity.WARNING)
