"""What AMCT's functions for quantization-aware training, alone or with pruning, have in common."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from amct_onnx.api.amct_log import amct_log
from amct_onnx.api.combine import CombinedResult, compress
from amct_onnx.api.compress import apply
from amct_onnx.api.drop_in.files import announce, check_paths
from amct_onnx.api.prune_config import PruneConfigSource
from amct_onnx.api.prune_source import load_float
from amct_onnx.api.saving import check_outputs, output_paths
from amct_onnx.api.source import load_source, source_files
from amct_onnx.errors import RecordError, UsageError
from amct_onnx.graph import BuiltModel, ExternalNaming, build, import_model
from amct_onnx.graph.files import replacing, write_model
from amct_onnx.record import Record, format_record, load_record
from amct_onnx.rewrite import OutputForm
from amct_onnx.wording import counted

FORMS = (OutputForm.ASCEND, OutputForm.FAKE_QUANT)
_PLAN = ("record", "tensors")


def create(
    log: logging.Logger,
    function: str,
    model_file: str,
    input_data: Any,
    config: PruneConfigSource,
    *,
    record_file: str,
    modified_onnx_file: str,
) -> None:
    """Do what a config says, and write the float model that came of it and the record.

    Args:
        log: where notes go.
        function: what the log calls this.
        model_file: the model.
        input_data: calibration feeds, which can be walked several times.
        config: the config.
        record_file: the record, started anew.
        modified_onnx_file: the float model that the record's scales belong to.

    Raises:
        UsageError: there is no data.
    """
    if input_data is None:
        raise UsageError(
            f"{function}: input_data is None, but layers are quantized by what they are fed; give a list of feeds"
        )
    done = compress(model_file, input_data, config=config, formats=FORMS, trial=False)
    tell(log, _notes(done))
    built = done.result.modified or as_it_is(model_file)
    write_both(built, modified_onnx_file, done.result.record, record_file)
    quantized = counted(len(done.result.record.layers), "layer")
    log.info("[%s]: %s quantized, saved in %s", function, quantized, modified_onnx_file)


def save(function: str, modified_onnx_file: str, record_file: str, save_path: str) -> None:
    """Write the deploy and the fake-quant model of a float model by its record, and the fusion map.

    Args:
        function: what errors call this.
        modified_onnx_file: the model.
        record_file: its record.
        save_path: folder and beginning of the file names.

    Raises:
        RecordError: the record does not belong to the model, or quantizes no layer.
    """
    with amct_log() as log:
        check_paths(function, modified_onnx_file=modified_onnx_file, record_file=record_file, save_path=save_path)
        paths = {kind: path for kind, path in output_paths(save_path, FORMS).items() if kind not in _PLAN}
        proto, base_dir = load_source(modified_onnx_file)
        inputs = [*source_files(modified_onnx_file, proto, base_dir), Path(record_file)]
        check_outputs(paths, inputs)
        announce(log, [str(path) for path in paths.values()], inputs)
        if not load_record(record_file).record.layers:
            raise RecordError(f"{record_file} quantizes no layer; save_prune_retrain_model saves such models")
        result = apply(modified_onnx_file, record_file, formats=FORMS)
        tell(log, result.report.notes)
        result.save(save_path, with_plan=False)
        for form in FORMS:
            log.info("[Utils]: The model file is saved in %s", paths[form.value])


def as_it_is(model_file: str) -> BuiltModel:
    """A float model that nothing has changed."""
    return build(import_model(*load_float(model_file)))


def write_both(built: BuiltModel, modified_onnx_file: str, record: Record | None, record_file: str) -> None:
    """Write a float model, and its record where there is a new one: both or nothing."""
    with ExitStack() as staged:
        write_model(built, Path(modified_onnx_file), ExternalNaming.ONE_FILE, staged=staged)
        if record is not None:
            staged.enter_context(replacing(Path(record_file))).write_bytes(format_record(record).encode())


def tell(log: logging.Logger, notes: Iterable[object]) -> None:
    """Log notes as warnings."""
    for note in notes:
        log.warning("%s", note)


def _notes(done: CombinedResult) -> list[str]:
    reports = (done.pruned, done.thinned, done.result.report)
    return [note for report in reports if report is not None for note in report.notes]
