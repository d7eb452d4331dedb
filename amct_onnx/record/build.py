"""Blocks of text -> the dataclasses of a record."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import fields
from typing import Any, TypeVar

from amct_onnx.prototext import Block, Problem
from amct_onnx.record.findings import Finding, Severity
from amct_onnx.record.header import RecordHeader
from amct_onnx.record.layers import KVCacheRecord, LayerRecord
from amct_onnx.record.model import LoadedRecord, Record
from amct_onnx.record.prune import AttrType, PruneAttr, PruneNode, PruneRecord

_Values = TypeVar("_Values", LayerRecord, KVCacheRecord)
_LIST_TYPES = (AttrType.FLOATS, AttrType.INTS, AttrType.STRINGS)


def build_record(root: Block, header: RecordHeader | None, source: str) -> LoadedRecord:
    """Return the record that a text says, with findings for what it says wrongly or twice."""
    return _Builder().build(root, header, source)


class _Builder:
    """Collects layers, findings and line numbers while the blocks are walked."""

    def __init__(self) -> None:
        self.layers: dict[str, LayerRecord] = {}
        self.kv_cache: dict[str, KVCacheRecord] = {}
        self.findings: list[Finding] = []
        self.lines: dict[str, int] = {}
        self.field_lines: dict[tuple[str, str], int] = {}
        self.node_lines: dict[tuple[int, str, int], int] = {}

    def build(self, root: Block, header: RecordHeader | None, source: str) -> LoadedRecord:
        self.findings += _placed(root.problems, "")
        for entry in root.all("record"):
            self._entry(entry)
        blocks = root.all("prune_record")
        prune = tuple(self._prune(index, block) for index, block in enumerate(blocks))
        return LoadedRecord(
            record=Record(self.layers, self.kv_cache, prune, header),
            findings=tuple(self.findings),
            source=source,
            lines=self.lines,
            field_lines=self.field_lines,
            prune_lines=tuple(block.line for block in blocks),
            node_lines=self.node_lines,
        )

    def _entry(self, entry: Block) -> None:
        key = entry.get("key") or ""
        value, cache = entry.get("value"), entry.get("kv_cache_value")
        problems = list(entry.all_problems())
        self.findings += _placed(problems, key)
        if all(problem.warning for problem in problems):
            if not key:
                self._error(entry.line, "", 'the entry has no key; give the layer\'s name: key: "name"')
            if value is None and cache is None:
                self._error(entry.line, key, "the entry has no value; give value { ... } or delete the entry")
        if not key:
            return
        if value is not None:
            self._store(key, self.layers, LayerRecord, value, entry.line)
        if cache is not None:
            self._store(key, self.kv_cache, KVCacheRecord, cache, entry.line)

    def _store(self, key: str, store: dict[str, _Values], cls: type[_Values], block: Block, line: int) -> None:
        known, found = store.get(key), _filled(cls, block)
        first = self.lines.setdefault(key, line)
        if known == found:
            message = f"a second entry says what line {first} says; delete one"
            self.findings.append(Finding(line, key, message, Severity.WARNING))
        elif known is not None:
            self._error(line, key, f"a second entry disagrees with the one on line {first}; delete one")
        store.setdefault(key, found)
        for field, values in block.fields.items():
            self.field_lines.setdefault((key, field), values.line)

    def _prune(self, index: int, block: Block) -> PruneRecord:
        self.findings += _placed(block.problems, "")
        return PruneRecord(
            producers=tuple(self._nodes(index, "producer", block)),
            consumers=tuple(self._nodes(index, "consumer", block)),
            selective_prune=next(iter(self._nodes(index, "selective_prune", block)), None),
        )

    def _nodes(self, index: int, role: str, block: Block) -> list[PruneNode]:
        nodes = []
        for position, node in enumerate(block.all(role)):
            name = node.get("name") or ""
            self.node_lines[index, role, position] = node.line
            self.findings += _placed(node.all_problems(), name)
            attrs = [self._attr(attr, name) for attr in node.all("attr")]
            nodes.append(PruneNode(name, tuple(attr for attr in attrs if attr is not None)))
        return nodes

    def _attr(self, block: Block, node: str) -> PruneAttr | None:
        if any(not problem.warning for problem in block.problems):
            return None
        name, given = block.get("name"), block.get("type")
        kinds = ", ".join(kind.name for kind in AttrType)
        if not name or given is None or given == "UNDEFINED":
            self._error(block.line, node, f"attr takes a name and a type, one of {kinds}")
            return None
        kind = AttrType[given]
        if set(block.fields) - {"name", "type", kind.value}:
            self._error(block.line, node, f"attr {name}: a value of type {kind.name} is written {kind.value}: ...")
            return None
        values = block.all(kind.value)
        if kind not in _LIST_TYPES and not values:
            self._error(block.line, node, f"attr {name} has no value; give {kind.value}: ...")
            return None
        return self._typed(block, node, name, kind, values)

    def _typed(self, block: Block, node: str, name: str, kind: AttrType, values: list[Any]) -> PruneAttr | None:
        try:
            plain = tuple(value.decode() if isinstance(value, bytes) else value for value in values)
        except UnicodeDecodeError:
            self._error(block.line, node, f"attr {name} is not UTF-8; write its text as UTF-8")
            return None
        return PruneAttr(name, kind, plain if kind in _LIST_TYPES else plain[0])

    def _error(self, line: int, entry: str, message: str) -> None:
        self.findings.append(Finding(line, entry, message))


def _placed(problems: Iterable[Problem], entry: str) -> list[Finding]:
    severity = {True: Severity.WARNING, False: Severity.ERROR}
    return [Finding(problem.line, entry, problem.message, severity[problem.warning]) for problem in problems]


def _filled(cls: type[_Values], block: Block) -> _Values:
    """Return the dataclass whose fields are named as those of the block; an empty default marks a repeated field."""
    repeated = {field.name for field in fields(cls) if field.default == ()}
    arguments: dict[str, Any] = {
        name: tuple(found.values) if name in repeated else found.values[0] for name, found in block.fields.items()
    }
    return cls(**arguments)
