"""What ``amct_onnx calibration`` does, with data files or with an evaluator."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from amct_onnx.analyse.walk import Progress
from amct_onnx.api.amct_log import amct_log
from amct_onnx.api.compress import quantize
from amct_onnx.api.drop_in.config import create_quant_config
from amct_onnx.api.drop_in.prepare import quantize_model, quantize_preprocess
from amct_onnx.api.drop_in.save import save_model
from amct_onnx.api.evaluator import calibrate_by, load_evaluator
from amct_onnx.api.result import CompressionResult, SavedFiles
from amct_onnx.api.saving import check_outputs, output_paths
from amct_onnx.config import arguments_request, load_request
from amct_onnx.graph import read_model
from amct_onnx.rewrite import OutputForm

FORMS = (OutputForm.ASCEND, OutputForm.FAKE_QUANT)


def calibrate_with_data(
    model: Path,
    data: Any,
    save_path: str,
    *,
    files: Sequence[Path] = (),
    calibration_config: Path | None = None,
    batch_num: int = 1,
    progress: Progress | None = None,
) -> tuple[CompressionResult, SavedFiles]:
    """Quantize by an AMCT config and write deploy model, fake-quant model and fusion map.

    Args:
        model: the model.
        data: feeds, ``batch_num`` of them or more.
        save_path: folder and beginning of the file names.
        files: files of the data, which no output may overwrite.
        calibration_config: a simple config; without, AMCT's defaults hold.
        batch_num: number of feeds, where no config says it.
        progress: wraps the iterator of feeds.

    Raises:
        AmctError: see :mod:`amct_onnx.errors`.
    """
    with amct_log():
        inputs = [*files, *([calibration_config] if calibration_config else [])]
        check_outputs(_outputs(save_path), [model, *inputs])
        request = load_request(calibration_config) if calibration_config else arguments_request(batch_num=batch_num)
        result = quantize(model, data, config=request, formats=FORMS, progress=progress)
        return result, result.save(save_path, protect=inputs, with_plan=False)


def calibrate_with_evaluator(
    model: Path, evaluator: Path, save_path: str, *, calibration_config: Path | None = None, batch_num: int = 1
) -> SavedFiles:
    """The same with a Python file whose evaluator runs the calibration model; intermediate files are not kept.

    Raises:
        AmctError: see :mod:`amct_onnx.errors`.
    """
    outputs = _outputs(save_path)
    check_outputs(outputs, [model, evaluator, *([calibration_config] if calibration_config else [])])
    read_model(model)
    runner = load_evaluator(evaluator)
    with tempfile.TemporaryDirectory(prefix="amct_onnx_") as folder:
        config, record, modified = (f"{folder}/{name}" for name in ("config.json", "record.txt", "modified_model.onnx"))
        definition = str(calibration_config) if calibration_config else None
        create_quant_config(config, str(model), batch_num=batch_num, config_defination=definition)
        if "dmq_balancer_param" in Path(config).read_text(encoding="utf-8"):
            quantize_preprocess(config, record, str(model), modified)
            calibrate_by(runner, modified, evaluator)
        quantize_model(config, str(model), modified, record)
        calibrate_by(runner, modified, evaluator)
        save_model(modified, record, save_path)
    return SavedFiles(outputs)


def _outputs(save_path: str) -> dict[str, Path]:
    kept = {*(form.value for form in FORMS), "quant_json"}
    return {kind: path for kind, path in output_paths(save_path, FORMS).items() if kind in kept}
