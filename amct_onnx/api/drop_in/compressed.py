"""``create_compressed_retrain_model`` and ``save_compressed_retrain_model``.

AMCT documents them for its PyTorch front end, where training follows in between. Here ONNX files stand in place of
modules, and what training would learn is taken from calibration data instead.
"""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Any

from amct_onnx.api.amct_log import amct_log
from amct_onnx.api.combine import CombinedResult, compress
from amct_onnx.api.compress import apply
from amct_onnx.api.drop_in.files import announce, check_paths
from amct_onnx.api.saving import check_outputs, output_paths
from amct_onnx.api.source import load_source, source_files
from amct_onnx.errors import RecordError
from amct_onnx.graph import ExternalNaming, build, import_model
from amct_onnx.graph.files import replacing, write_model
from amct_onnx.record import format_record, load_record
from amct_onnx.rewrite import OutputForm

_FORMS = (OutputForm.ASCEND, OutputForm.FAKE_QUANT)
_PLAN = ("record", "tensors")


def create_compressed_retrain_model(
    model_file: str, input_data: Any, config_defination: str, record_file: str, modified_onnx_file: str
) -> None:
    """Write the model pruned and thinned out as a config says, and the record of that and of all scales.

    Args:
        model_file: the model.
        input_data: calibration feeds as for :func:`amct_onnx.quantize`, which can be walked several times.
        config_defination: simple config with what to prune and to quantize.
        record_file: the record, started anew.
        modified_onnx_file: the float model that the record's scales belong to.

    Raises:
        AmctError: see :mod:`amct_onnx.errors`.
    """
    function = "create_compressed_retrain_model"
    with amct_log() as log:
        check_paths(function, model_file=model_file, config_defination=config_defination, record_file=record_file)
        check_paths(function, modified_onnx_file=modified_onnx_file)
        proto, base_dir = load_source(model_file)
        files = source_files(model_file, proto, base_dir)
        announce(log, [record_file, modified_onnx_file], [*files, Path(config_defination)])
        done = compress(model_file, input_data, config=config_defination, formats=_FORMS, trial=False)
        for note in _notes(done):
            log.warning("%s", note)
        built = done.result.modified or build(import_model(proto, base_dir))
        with ExitStack() as staged:
            write_model(built, Path(modified_onnx_file), ExternalNaming.ONE_FILE, staged=staged)
            staged.enter_context(replacing(Path(record_file))).write_bytes(format_record(done.result.record).encode())
        log.info("[%s]: %d layers quantized, saved in %s", function, len(done.result.record.layers), modified_onnx_file)


def save_compressed_retrain_model(modified_onnx_file: str, record_file: str, save_path: str) -> None:
    """Write the deploy and the fake-quant model of a compressed one, and the fusion map.

    Args:
        modified_onnx_file: the model that :func:`create_compressed_retrain_model` wrote.
        record_file: the record written beside it.
        save_path: folder and beginning of the names of ``_deploy_model.onnx`` and ``_fake_quant_model.onnx``.

    Raises:
        RecordError: the record does not belong to the model, or quantizes no layer.
        AmctError: see :mod:`amct_onnx.errors`.
    """
    function = "save_compressed_retrain_model"
    with amct_log() as log:
        check_paths(function, modified_onnx_file=modified_onnx_file, record_file=record_file, save_path=save_path)
        paths = {kind: path for kind, path in output_paths(save_path, _FORMS).items() if kind not in _PLAN}
        proto, base_dir = load_source(modified_onnx_file)
        inputs = [*source_files(modified_onnx_file, proto, base_dir), Path(record_file)]
        check_outputs(paths, inputs)
        announce(log, [str(path) for path in paths.values()], inputs)
        if not load_record(record_file).record.layers:
            raise RecordError(f"{record_file} quantizes no layer; save_prune_retrain_model saves such models")
        result = apply(modified_onnx_file, record_file, formats=_FORMS)
        for note in result.report.notes:
            log.warning("%s", note)
        result.save(save_path, with_plan=False)
        for form in _FORMS:
            log.info("[Utils]: The model file is saved in %s", paths[form.value])


def _notes(done: CombinedResult) -> list[str]:
    reports = (done.pruned, done.thinned, done.result.report)
    return [note for report in reports if report is not None for note in report.notes]
