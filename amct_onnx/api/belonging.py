"""Does a plan belong to a model?"""

from __future__ import annotations

from pathlib import Path

from onnx import ModelProto

from amct_onnx.api.assemble import plain_record
from amct_onnx.errors import RecordError
from amct_onnx.graph import digest
from amct_onnx.record import LoadedRecord, Record

TAKEN_AS_IT_IS = "this is the modified model that the record was made with, so nothing more is taken out of it"
"""What a report says where a record has been applied to what it led to."""


_MODELS_BESIDE = "*_modified_model.onnx, *_pruned_model.onnx or *_sparse_model.onnx"
_STRUCTURE_ALONE = ", or take the structure without these weights (--structure-only)"


def is_modified_model(record: Record, proto: ModelProto, base_dir: Path | None) -> bool:
    """Whether a model is the one whose digest a record carries as that of the modified model.

    Whatever the record takes out is gone there, whether its weights could be found again from the source or not.

    Args:
        record: the record.
        proto: the model.
        base_dir: folder of its external weights.
    """
    wanted = None if record.header is None else record.header.modified_sha256
    return wanted is not None and wanted == digest(proto, base_dir)


def check_belongs(
    plan: Record | LoadedRecord, proto: ModelProto, base_dir: Path | None, *, what: str = "record"
) -> list[str]:
    """Refuse a plan that was made for another model; return notes about one that cannot tell.

    Args:
        plan: the plan; one that was loaded is named by its file.
        proto: the model.
        base_dir: folder of its external weights.
        what: what messages call the plan.

    Raises:
        RecordError: it belongs to another model, or to modified weights that this model does not have.
    """
    header = plain_record(plan).header
    where = f"{plan.source}: " if isinstance(plan, LoadedRecord) else ""
    if header is None:
        return [f"the {what} carries no header of ours: its weights are taken as recomputable from this model"]
    if is_modified_model(plain_record(plan), proto, base_dir):
        return []
    if header.weights.is_modified:
        raise RecordError(
            f"{where}the {what} says that weights were modified when it was made, and no {what} holds these; apply "
            f"it to the model written beside it ({_MODELS_BESIDE})"
            + (_STRUCTURE_ALONE if plain_record(plan).prune else "")
        )
    if header.source_sha256 is not None and header.source_sha256 != digest(proto, base_dir):
        raise RecordError(
            f"{where}the {what} was made for another model (its source sha256 differs); apply it to the model it was "
            "made from, or delete the '# source sha256' line if the change does not matter"
        )
    return []
