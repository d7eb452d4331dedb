"""What a record takes out of a model before layers are quantized."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from onnx import ModelProto

from amct_onnx.api.assemble import plain_record
from amct_onnx.api.belonging import is_modified_model
from amct_onnx.api.prune import restore_pruned
from amct_onnx.api.source import Source
from amct_onnx.api.sparsify import restore_sparse
from amct_onnx.graph import BuiltModel
from amct_onnx.record import LoadedRecord, Record


def is_to_restore(record: Record, proto: ModelProto, base_dir: Path | None) -> bool:
    """Whether channels or weights are still to go: the record names some, and the model is not the modified one."""
    return bool(record.prune) and not is_modified_model(record, proto, base_dir)


def restored(model: Source, record: Record | LoadedRecord, *, structure_only: bool = False) -> BuiltModel:
    """The model without the channels and weights that a record takes out.

    Args:
        model: the model the record was made for; with `structure_only` any of the same structure.
        record: the record.
        structure_only: take the record for a model with other weights, too.

    Raises:
        RecordError: the record does not fit the model.
    """
    if plain_record(record).takes_channels:
        return restore_pruned(model, record, structure_only=structure_only).model
    return restore_sparse(model, record, structure_only=structure_only).model


def quantization_part(record: Record | LoadedRecord) -> Record | LoadedRecord:
    """What a record says of quantizing; of what it takes out nothing is left to check in the modified model."""
    if isinstance(record, Record):
        return replace(record, prune=())
    return replace(record, record=replace(record.record, prune=()), prune_lines=(), node_lines={})
