"""A model for training again, from the source, the record and weights: what ``restore_*_retrain_model`` have in common.

AMCT's trained weights come with the scales that were trained with them. Here a file holds weights alone, so scales are
found anew on the data where the weights are not those that the record was made with.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

from onnx import ModelProto

from amct_onnx.analyse.fitting.data import FittingData
from amct_onnx.api.belonging import check_belongs
from amct_onnx.api.drop_in.retrain_steps import FORMS, as_it_is, tell, write_both
from amct_onnx.api.drop_in.trained_weights import with_weights
from amct_onnx.api.given import walkable
from amct_onnx.api.prune import restore_pruned
from amct_onnx.api.prune_source import load_float
from amct_onnx.api.retrain_quantize import quantize_as_configured
from amct_onnx.api.sparsify import restore_sparse
from amct_onnx.api.thin_out import masked_by_record
from amct_onnx.config.retrain import RetrainConfig
from amct_onnx.errors import RecordError, UsageError
from amct_onnx.graph import BuiltModel, digest
from amct_onnx.record import LoadedRecord, Record, RecordHeader, WeightState, load_record


def restore(
    log: logging.Logger,
    function: str,
    model_file: str,
    input_data: Any,
    config: RetrainConfig,
    *,
    record_file: str,
    weights_file: str | None,
    modified_onnx_file: str,
) -> None:
    """Write the modified model again; the record too, with new scales, where the weights are others.

    Args:
        log: where notes go.
        function: what the log and errors call this.
        model_file: the model that the record was made for, or the modified one.
        input_data: calibration feeds, needed for new scales.
        config: the config, resolved for the model.
        record_file: the record.
        weights_file: an .npz or .onnx file of weights by name; None for those that the record was made with.
        modified_onnx_file: the modified model.

    Raises:
        RecordError: the record does not fit the model, or was made with weights that nobody gave.
        UsageError: new scales are needed, and there is no data.
    """
    loaded = load_record(record_file)
    built = _restored(model_file, loaded, None if weights_file is None else Path(weights_file))
    restored = built.to_proto()
    if is_of(loaded.record, restored, None):
        record = None
    else:
        if input_data is None:
            raise UsageError(
                f"{function}: input_data is None, but the weights are not those that {record_file} was made with, so "
                "scales are found anew; give a list of feeds"
            )
        given = FittingData(walkable(input_data, "finding scales"))
        result = quantize_as_configured(restored, None, config, given, FORMS)
        tell(log, result.report.notes)
        record = replace(loaded.record, layers=result.record.layers, header=_header(loaded.record, restored))
    write_both(built, modified_onnx_file, record, record_file)
    scales = "scales kept" if record is None else f"scales of {len(record.layers)} layers found anew in {record_file}"
    log.info("[%s]: saved in %s, %s", function, modified_onnx_file, scales)


def is_of(record: Record, proto: ModelProto, base_dir: Path | None) -> bool:
    """Whether a record's scales belong to a float model: the modified one, or the source where nothing goes."""
    header = record.header or RecordHeader()
    own = header.modified_sha256 if record.prune else header.source_sha256
    return own is not None and own == digest(proto, base_dir)


def _header(record: Record, restored: ModelProto) -> RecordHeader:
    header, sha256 = record.header or RecordHeader(), digest(restored, None)
    if not record.prune:
        return replace(header, source_sha256=sha256)
    return replace(header, weights=WeightState.MODIFIED, modified_sha256=sha256)


def _restored(model_file: str, loaded: LoadedRecord, weights: Path | None) -> BuiltModel:
    """The modified model, with the weights of a file where one is given."""
    record = loaded.record
    if weights is not None and weights.suffix == ".onnx" and _is_modified(str(weights), record):
        # Fitting may have added biases, which the source lacks; the model itself has everything.
        return as_it_is(str(weights))
    if not record.prune or _is_modified(model_file, record):
        built = as_it_is(model_file)
    else:
        built = _structure(model_file, loaded, with_own_weights=weights is None)
    if weights is None:
        return built
    trained = with_weights(built, weights)
    if not any(entry.selective_prune for entry in record.prune):
        return trained
    # Training elsewhere knows no masks.
    return masked_by_record(trained.to_proto(), None, record, loaded.source)[0].built


def _structure(model_file: str, loaded: LoadedRecord, *, with_own_weights: bool) -> BuiltModel:
    if with_own_weights:
        if loaded.record.is_fitted:
            raise RecordError(
                f"{loaded.source}: weights were modified when it was made, and no record holds these; give the "
                "modified model that was written beside it, or what it was trained to, as weights_file"
            )
        check_belongs(loaded, *load_float(model_file))
    if loaded.record.takes_channels:
        return restore_pruned(model_file, loaded, structure_only=True).model
    return restore_sparse(model_file, loaded, structure_only=True).model


def _is_modified(path: str, record: Record) -> bool:
    return bool(record.prune) and is_of(record, *load_float(path))
