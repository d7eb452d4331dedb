"""The entries of a record as tables, and its prune records as data."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from amct_onnx.cli.console import Console
from amct_onnx.cli.words import few
from amct_onnx.record import LayerRecord, PruneNode, PruneRecord, Record, unpack_mask


def show_entries(console: Console, record: Record) -> None:
    """Layers and caches; what only recurrent layers have stands in a table of its own."""
    rows = [
        (
            name,
            _short(entry.scale_d),
            entry.offset_d,
            len(entry.scale_w),
            _range(entry.scale_w),
            entry.activation_type,
            entry.weight_type,
        )
        for name, entry in record.layers.items()
    ]
    console.table(("entry", "scale_d", "offset_d", "weight scales", "scale_w", "act", "wts"), rows)
    recurrent = [
        (name, _short(entry.scale_h), entry.offset_h, len(entry.scale_r), _range(entry.scale_r))
        for name, entry in record.layers.items()
        if _is_recurrent(entry)
    ]
    console.table(("recurrent entry", "scale_h", "offset_h", "recurrence scales", "scale_r"), recurrent)
    console.table(("cache", "scales"), [(name, len(entry.scale)) for name, entry in record.kv_cache.items()])


def show_prune(console: Console, record: Record) -> None:
    """Which layers lose how many channels and who follows, and which weights a mask thins out."""
    groups = [
        (number, few(map(_lost, prune.producers)), few(node.name for node in prune.consumers))
        for number, prune in enumerate(record.prune)
        if prune.selective_prune is None
    ]
    console.table(("prune group", "producers (channels that go)", "consumers"), groups)
    masks = [_mask(prune.selective_prune) for prune in record.prune if prune.selective_prune is not None]
    shown = [(mask["layer"], mask["shape"], "" if mask["kept"] is None else mask["kept"]) for mask in masks]
    console.table(("mask of", "shape", "weights that stay"), shown)


def prune_data(prune: PruneRecord) -> dict[str, Any]:
    """One prune record as plain data."""
    return {
        "producers": [node.name for node in prune.producers],
        "consumers": [node.name for node in prune.consumers],
        "removed": {node.name: list(node.prune_index or ()) for node in prune.producers},
        "selective_prune": prune.selective_prune.name if prune.selective_prune else None,
        "mask": None if prune.selective_prune is None else _mask(prune.selective_prune),
    }


def _is_recurrent(entry: LayerRecord) -> bool:
    return bool(entry.scale_h is not None or entry.offset_h is not None or entry.scale_r or entry.offset_r)


def _lost(node: PruneNode) -> str:
    count = (node.end or 0) - (node.begin or 0)
    return f"{node.name} ({len(node.prune_index or ())} of {count})"


def _mask(node: PruneNode) -> dict[str, Any]:
    """Layer, shape of its weight, and how many values stay; None for that where the mask is still to be searched."""
    shape, words = node.mask_shape or (), node.selective_mask
    kept = None if words is None else int(unpack_mask(words, shape).sum())
    return {"layer": node.name, "shape": list(shape), "kept": kept}


def _short(value: float | None) -> str:
    """A float32 in the fewest digits that tell it from its neighbours."""
    return "" if value is None else str(np.float32(value))


def _range(scales: Sequence[float]) -> str:
    if not scales:
        return ""
    return f"{min(scales):.4g}" + (f" .. {max(scales):.4g}" if len(scales) > 1 else "")
