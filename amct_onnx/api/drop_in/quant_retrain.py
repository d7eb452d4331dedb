"""``create_quant_retrain_config``, ``create_``, ``restore_`` and ``save_quant_retrain_model``.

AMCT documents them for its PyTorch front end, for quantization-aware training. Here ONNX files stand in place of
modules, and what training would learn is taken from calibration data instead.
"""

from __future__ import annotations

from typing import Any

from amct_onnx.api.amct_log import amct_log
from amct_onnx.api.drop_in import retrain_restore, retrain_steps
from amct_onnx.api.drop_in.files import check_paths, open_files, write_text
from amct_onnx.api.prune_config import resolve_quant_retrain
from amct_onnx.config.retrain import RetrainRequest, format_retrain_json


def create_quant_retrain_config(
    config_file: str, model_file: str, input_data: Any = None, config_defination: str | None = None
) -> None:
    """Write the JSON config of a model whose layers are quantized: all of them, by defaults where nothing is said.

    Args:
        config_file: where it goes; a file of that name is replaced.
        model_file: the model.
        input_data: not needed here; AMCT runs its module on it.
        config_defination: path of a simple config without what concerns pruning.

    Raises:
        AmctError: see :mod:`amct_onnx.errors`.
    """
    function = "create_quant_retrain_config"
    with amct_log() as log:
        inputs, outputs = {"config_defination": config_defination}, {"config_file": config_file}
        open_files(log, function, model_file, inputs=inputs, outputs=outputs)
        config = resolve_quant_retrain(model_file, config_defination or RetrainRequest(source=function))
        retrain_steps.tell(log, config.warnings)
        write_text(config_file, format_retrain_json(config))
        log.info("[%s]: Create quant retrain config file %s success.", function, config_file)


def create_quant_retrain_model(
    config_file: str, model_file: str, record_file: str, input_data: Any, modified_onnx_file: str
) -> None:
    """Write the record of all scales, and the float model that they belong to, to be trained on.

    Args:
        config_file: the config that :func:`create_quant_retrain_config` wrote, or a simple config.
        model_file: the model.
        record_file: the record, started anew.
        input_data: calibration feeds as for :func:`amct_onnx.quantize`, which can be walked several times.
        modified_onnx_file: the float model.

    Raises:
        AmctError: see :mod:`amct_onnx.errors`.
    """
    function = "create_quant_retrain_model"
    with amct_log() as log:
        check_paths(function, config_file=config_file)
        outputs = {"record_file": record_file, "modified_onnx_file": modified_onnx_file}
        open_files(log, function, model_file, inputs={"config_file": config_file}, outputs=outputs)
        retrain_steps.create(
            log,
            function,
            model_file,
            input_data,
            resolve_quant_retrain(model_file, config_file),
            record_file=record_file,
            modified_onnx_file=modified_onnx_file,
        )


def restore_quant_retrain_model(
    config_file: str,
    model_file: str,
    record_file: str,
    input_data: Any,
    weights_file: str | None,
    modified_onnx_file: str,
) -> None:
    """Write the float model again, from its record and the weights it was trained to.

    Args:
        config_file: the config it was made by.
        model_file: the model.
        record_file: its record, which gets new scales where the weights are others.
        input_data: calibration feeds; None where the weights are those that the record was made with.
        weights_file: an .npz file of arrays, or an .onnx file of initializers, by the names of the model's; what it
            does not hold stays as it was. None for the weights of `model_file`.
        modified_onnx_file: the float model.

    Raises:
        RecordError: the record cannot be read.
        AmctError: see :mod:`amct_onnx.errors`.
    """
    function = "restore_quant_retrain_model"
    with amct_log() as log:
        check_paths(function, config_file=config_file, record_file=record_file)
        inputs = {"config_file": config_file, "record_file": record_file, "weights_file": weights_file}
        outputs = {"modified_onnx_file": modified_onnx_file}
        open_files(log, function, model_file, inputs=inputs, outputs=outputs)
        retrain_restore.restore(
            log,
            function,
            model_file,
            input_data,
            resolve_quant_retrain(model_file, config_file),
            record_file=record_file,
            weights_file=weights_file,
            modified_onnx_file=modified_onnx_file,
        )


def save_quant_retrain_model(
    config_file: str, modified_onnx_file: str, record_file: str, save_path: str, input_data: Any = None
) -> None:
    """Write the deploy and the fake-quant model, and the fusion map.

    Args:
        config_file: the config they were made by, which is checked; the record alone says what is done.
        modified_onnx_file: the model that :func:`create_quant_retrain_model` wrote.
        record_file: the record written beside it.
        save_path: folder and beginning of the names of ``_deploy_model.onnx`` and ``_fake_quant_model.onnx``.
        input_data: not needed here; AMCT runs its module on it.

    Raises:
        RecordError: the record does not belong to the model, or quantizes no layer.
        AmctError: see :mod:`amct_onnx.errors`.
    """
    function = "save_quant_retrain_model"
    check_paths(function, config_file=config_file, modified_onnx_file=modified_onnx_file)
    resolve_quant_retrain(modified_onnx_file, config_file)
    retrain_steps.save(function, modified_onnx_file, record_file, save_path)
