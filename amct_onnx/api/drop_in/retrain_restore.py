"""A model for training again, from the source, the record and weights: what ``restore_*_retrain_model`` have in common.

AMCT's trained weights come with the scales that were trained with them. Here a file holds weights alone, so scales are
found anew on the data where the weights are not those that the record was made with.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from onnx import ModelProto

from amct_onnx.analyse.fitting.data import FittingData
from amct_onnx.api.belonging import check_belongs
from amct_onnx.api.drop_in.retrain_steps import FORMS, as_it_is, tell, write_both
from amct_onnx.api.drop_in.trained_weights import with_trained
from amct_onnx.api.given import walkable
from amct_onnx.api.prune_source import load_float
from amct_onnx.api.retrain_quantize import quantize_as_configured
from amct_onnx.api.structure import is_to_restore, restored
from amct_onnx.config.retrain import RetrainConfig
from amct_onnx.errors import RecordError, UsageError
from amct_onnx.graph import BuiltModel, digest
from amct_onnx.record import LayerRecord, LoadedRecord, Record, RecordHeader, WeightState, load_record
from amct_onnx.wording import counted


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
    record = None
    if weights_file is None:
        built = _own(log, model_file, loaded)
    else:
        built = _with_weights(model_file, loaded, Path(weights_file))
        trained = built.to_source()
        if not _is_of(loaded.record, *trained):
            layers = _scales(log, function, trained, input_data, config, record_file)
            record = replace(loaded.record, layers=layers, header=_header(loaded.record, digest(*trained)))
    write_both(built, modified_onnx_file, record, record_file)
    scales = (
        "scales kept"
        if record is None
        else f"scales of {counted(len(record.layers), 'layer')} found anew in {record_file}"
    )
    log.info("[%s]: saved in %s, %s", function, modified_onnx_file, scales)


def _scales(
    log: logging.Logger,
    function: str,
    trained: tuple[ModelProto, Path | None],
    input_data: Any,
    config: RetrainConfig,
    record_file: str,
) -> Mapping[str, LayerRecord]:
    """The entries of layers whose weights are not those that a record was made with."""
    if input_data is None:
        raise UsageError(
            f"{function}: input_data is None, but the weights are not those that {record_file} was made with, so "
            "scales are found anew; give a list of feeds"
        )
    given = FittingData(walkable(input_data, "finding scales"))
    result = quantize_as_configured(*trained, config, given, FORMS)
    tell(log, result.report.notes)
    return result.record.layers


def _is_of(record: Record, proto: ModelProto, base_dir: Path | None) -> bool:
    """Whether a record's scales belong to a float model: the modified one, or the source where nothing goes."""
    header = record.header or RecordHeader()
    own = header.modified_sha256 if record.prune else header.source_sha256
    return own is not None and own == digest(proto, base_dir)


def _header(record: Record, sha256: str) -> RecordHeader:
    header = record.header or RecordHeader()
    if not record.prune:
        return replace(header, source_sha256=sha256)
    return replace(header, weights=WeightState.MODIFIED, modified_sha256=sha256)


def _own(log: logging.Logger, model_file: str, loaded: LoadedRecord) -> BuiltModel:
    """The modified model with the weights that the record was made with."""
    proto, base_dir = load_float(model_file)
    if loaded.record.is_fitted and not _is_of(loaded.record, proto, base_dir):
        raise RecordError(
            f"{loaded.source}: weights were modified when it was made, and no record holds these; give the modified "
            "model that was written beside it, or what it was trained to, as weights_file"
        )
    tell(log, check_belongs(loaded, proto, base_dir))
    if is_to_restore(loaded.record, proto, base_dir):
        return restored(model_file, loaded)
    return as_it_is(model_file)


def _with_weights(model_file: str, loaded: LoadedRecord, weights: Path) -> BuiltModel:
    """The modified model with the weights of a file."""
    record = loaded.record
    if weights.suffix == ".onnx" and _is_of(record, *load_float(str(weights))):
        return as_it_is(str(weights))
    if is_to_restore(record, *load_float(model_file)):
        built = restored(model_file, loaded, structure_only=True)
    else:
        built = as_it_is(model_file)
    return with_trained(built, weights, loaded)
