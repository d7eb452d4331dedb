"""Record -> text and file."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path

from amct_onnx.errors import UsageError
from amct_onnx.prototext.write import quote, shortest
from amct_onnx.record.header import format_header
from amct_onnx.record.layers import KVCacheRecord, LayerRecord
from amct_onnx.record.model import Record
from amct_onnx.record.prune import PruneAttr, PruneNode, PruneRecord


def save_record(record: Record, path: str | os.PathLike[str]) -> None:
    """Write a record to a file in one step: a reader sees the old file or the new one, never a part.

    Raises :class:`UsageError` if the file cannot be written there.
    """
    data = format_record(record).encode()
    target = Path(path).resolve()
    temporary = target.with_name(f".{target.name}.{secrets.token_hex(4)}")
    try:
        temporary.write_bytes(data)
        os.replace(temporary, target)
    except OSError as fault:
        raise UsageError(f"{os.fspath(path)} cannot be written: {fault.strerror}; give another path") from fault
    finally:
        temporary.unlink(missing_ok=True)


def format_record(record: Record) -> str:
    """Return the text of a record: its header, then one entry a layer or cache in the order given, then pruning.

    The same record gives the same text; fields that are not set are left out. protobuf's own printer agrees with the
    text to the letter.
    """
    parts = [] if record.header is None else [format_header(record.header)]
    for key in {**record.layers, **record.kv_cache}:
        parts.append("\n".join(_entry(key, record.layers.get(key), record.kv_cache.get(key))))
    for prune in record.prune:
        parts.append("\n".join(_block("prune_record", _prune(prune))))
    return "".join(part if part.endswith("\n") else part + "\n" for part in parts)


def _entry(key: str, layer: LayerRecord | None, cache: KVCacheRecord | None) -> Iterator[str]:
    body = [f"key: {quote(key)}"]
    if layer is not None:
        body += _block("value", _fields(layer))
    if cache is not None:
        body += _block("kv_cache_value", _fields(cache))
    return _block("record", body)


def _fields(values: LayerRecord | KVCacheRecord) -> Iterator[str]:
    for field in fields(values):
        value = getattr(values, field.name)
        if isinstance(value, tuple):
            prefix = field.name + ": "
            yield from [prefix + _scalar(item) for item in value]
        elif value is not None:
            yield f"{field.name}: {_scalar(value)}"


def _prune(prune: PruneRecord) -> Iterator[str]:
    for role, _, node in prune.nodes():
        yield from _block(role, _node(node))


def _node(node: PruneNode) -> Iterator[str]:
    yield f"name: {quote(node.name)}"
    for attr in node.attrs:
        yield from _block("attr", _attr(attr))


def _attr(attr: PruneAttr) -> Iterator[str]:
    yield f"name: {quote(attr.name)}"
    yield f"type: {attr.type.name}"
    values = attr.value if isinstance(attr.value, tuple) else (attr.value,)
    yield from (f"{attr.type.value}: {_scalar(value)}" for value in values)


def _block(name: str, body: Iterator[str] | list[str]) -> Iterator[str]:
    yield name + " {"
    yield from ["  " + line for line in body]
    yield "}"


def _scalar(value: float | int | bool | str) -> str:
    if isinstance(value, float):
        return shortest(value)
    if isinstance(value, bool):
        return "true" if value else "false"
    return quote(value) if isinstance(value, str) else str(value)
