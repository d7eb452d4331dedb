"""The record of what was taken out of a model, where its weights are not those of the record that said what goes."""

from __future__ import annotations

from pathlib import Path

from onnx import ModelProto

from amct_onnx.graph import digest
from amct_onnx.record import Record, RecordHeader


def structure_alone(record: Record, proto: ModelProto, base_dir: Path | None) -> tuple[Record, tuple[str, ...]]:
    """What goes, as a record of its own for a model, and what a report should say of the rest.

    Scales are those of other weights, so they are left out.

    Args:
        record: the record.
        proto: the model that its structure was applied to.
        base_dir: folder of its external weights.
    """
    alone = Record(prune=record.prune, header=RecordHeader(source_sha256=digest(proto, base_dir)))
    count = sum(layer.scale_d is not None for layer in record.layers.values())
    if not count:
        return alone, ()
    layers = "of 1 layer are left out: they are" if count == 1 else f"of {count} layers are left out: they are"
    return alone, (f"scales {layers} those of the modified model's weights; quantize this one with data of its own",)
