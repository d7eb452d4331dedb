"""A whole record, and one as it was read: with findings and line numbers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from amct_onnx.record.findings import Finding
from amct_onnx.record.header import RecordHeader, WeightState
from amct_onnx.record.layers import KVCacheRecord, LayerRecord
from amct_onnx.record.prune import PruneRecord


@dataclass(frozen=True)
class Record:
    """A compression plan: layers by name in the order of their first writing, caches, and pruning.

    ``header`` is None for a record that another tool wrote.
    """

    layers: Mapping[str, LayerRecord] = field(default_factory=dict)
    kv_cache: Mapping[str, KVCacheRecord] = field(default_factory=dict)
    prune: tuple[PruneRecord, ...] = ()
    header: RecordHeader | None = None

    @property
    def prunes_only(self) -> bool:
        """Whether channels or weights go and nothing is quantized."""
        return bool(self.prune) and not self.layers

    @property
    def thins_only(self) -> bool:
        """Whether weights go and nothing else happens."""
        return self.prunes_only and not self.takes_channels

    @property
    def takes_channels(self) -> bool:
        """Whether channels go."""
        return any(entry.producers for entry in self.prune)

    @property
    def is_fitted(self) -> bool:
        """Whether weights of the model that it led to do not follow from the source."""
        return self.header is not None and self.header.weights is WeightState.MODIFIED


@dataclass(frozen=True)
class LoadedRecord:
    """A record as read from ``source``, with its warnings and the lines (from 1) where things stand.

    ``lines`` has the line of each key's entry; ``field_lines`` of a key's field (of a repeated field: its first
    value); ``prune_lines`` of each prune record; ``node_lines`` of each prune node, by index of the prune
    record, role (``producer``, ``consumer``, ``selective_prune``) and position in that role.
    """

    record: Record
    findings: tuple[Finding, ...] = ()
    source: str = "record"
    lines: Mapping[str, int] = field(default_factory=dict)
    field_lines: Mapping[tuple[str, str], int] = field(default_factory=dict)
    prune_lines: tuple[int, ...] = ()
    node_lines: Mapping[tuple[int, str, int], int] = field(default_factory=dict)

    def line_of(self, key: str, field_name: str | None = None) -> int | None:
        """Return the line of a key's field, or of its entry where the field does not stand."""
        entry = self.lines.get(key)
        return entry if field_name is None else self.field_lines.get((key, field_name), entry)
