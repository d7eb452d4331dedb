"""``create_compressed_retrain_model``, ``restore_compressed_retrain_model`` and ``save_compressed_retrain_model``.

AMCT documents them for its PyTorch front end, where training follows in between. Here ONNX files stand in place of
modules, and what training would learn is taken from calibration data instead.
"""

from __future__ import annotations

from typing import Any

from amct_onnx.api.amct_log import amct_log
from amct_onnx.api.drop_in import retrain_restore, retrain_steps
from amct_onnx.api.drop_in.files import check_paths, open_files
from amct_onnx.api.prune_config import resolve_prune_config


def create_compressed_retrain_model(
    model_file: str, input_data: Any, config_defination: str, record_file: str, modified_onnx_file: str
) -> None:
    """Write the model pruned and thinned out as a config says, and the record of that and of all scales.

    Args:
        model_file: the model.
        input_data: calibration feeds as for :func:`amct_onnx.quantize`, which can be walked several times.
        config_defination: simple config, or one in JSON, with what to prune and to quantize.
        record_file: the record, started anew.
        modified_onnx_file: the float model that the record's scales belong to.

    Raises:
        AmctError: see :mod:`amct_onnx.errors`.
    """
    function = "create_compressed_retrain_model"
    with amct_log() as log:
        check_paths(function, config_defination=config_defination)
        outputs = {"record_file": record_file, "modified_onnx_file": modified_onnx_file}
        open_files(log, function, model_file, inputs={"config_defination": config_defination}, outputs=outputs)
        retrain_steps.create(
            log,
            function,
            model_file,
            input_data,
            config_defination,
            record_file=record_file,
            modified_onnx_file=modified_onnx_file,
        )


def restore_compressed_retrain_model(
    model_file: str,
    input_data: Any,
    config_defination: str,
    record_file: str,
    weights_file: str | None,
    modified_onnx_file: str,
) -> None:
    """Write the modified model again, from a record and the weights it was trained to.

    Args:
        model_file: the model that was compressed, or the modified one.
        input_data: calibration feeds; None where the weights are those that the record was made with.
        config_defination: the config it was compressed by.
        record_file: its record, which gets new scales where the weights are others.
        weights_file: an .npz file of arrays, or an .onnx file of initializers, by the names of the modified model's;
            what it does not hold stays as it was. None where the record can make the model's own.
        modified_onnx_file: the modified model.

    Raises:
        RecordError: the record does not fit the model.
        AmctError: see :mod:`amct_onnx.errors`.
    """
    function = "restore_compressed_retrain_model"
    with amct_log() as log:
        check_paths(function, config_defination=config_defination, record_file=record_file)
        inputs = {"config_defination": config_defination, "record_file": record_file, "weights_file": weights_file}
        outputs = {"modified_onnx_file": modified_onnx_file}
        open_files(log, function, model_file, inputs=inputs, outputs=outputs)
        retrain_restore.restore(
            log,
            function,
            model_file,
            input_data,
            resolve_prune_config(model_file, config_defination),
            record_file=record_file,
            weights_file=weights_file,
            modified_onnx_file=modified_onnx_file,
        )


def save_compressed_retrain_model(
    modified_onnx_file: str, record_file: str, save_path: str, input_data: Any = None
) -> None:
    """Write the deploy and the fake-quant model of a compressed one, and the fusion map.

    Args:
        modified_onnx_file: the model that :func:`create_compressed_retrain_model` wrote.
        record_file: the record written beside it.
        save_path: folder and beginning of the names of ``_deploy_model.onnx`` and ``_fake_quant_model.onnx``.
        input_data: not needed here; AMCT runs its module on it.

    Raises:
        RecordError: the record does not belong to the model, or quantizes no layer.
        AmctError: see :mod:`amct_onnx.errors`.
    """
    retrain_steps.save("save_compressed_retrain_model", modified_onnx_file, record_file, save_path)
