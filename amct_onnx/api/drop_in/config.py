"""``create_quant_config``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from amct_onnx.api.amct_log import amct_log
from amct_onnx.api.configured import configure
from amct_onnx.api.drop_in.files import announce, check_paths, write_text
from amct_onnx.api.source import blaming_illegal_models, load_source, refuse_compressed, source_files
from amct_onnx.config import arguments_request, format_json, load_request
from amct_onnx.graph import build, import_model, name_nodes
from amct_onnx.graph.files import write_model


def create_quant_config(
    config_file: str,
    model_file: str,
    skip_layers: Sequence[str] | None = None,
    batch_num: int = 1,
    activation_offset: bool = True,
    config_defination: str | None = None,
    updated_model: str | None = None,
) -> None:
    """Write the JSON config of a model.

    Args:
        config_file: where it goes; a file of that name is replaced.
        model_file: the model.
        skip_layers: quantizable layers to leave float.
        batch_num: number of calibration runs.
        activation_offset: whether activations have a zero point.
        config_defination: path of a simple config, which takes the place of the three arguments before.
        updated_model: where to write the model with a name for every node.

    Raises:
        AmctError: see :mod:`amct_onnx.errors`.
    """
    with amct_log() as log:
        check_paths("create_quant_config", config_file=config_file, model_file=model_file)
        proto, base_dir = load_source(model_file)
        refuse_compressed(proto)
        targets = [config_file] + ([updated_model] if updated_model else [])
        announce(log, targets, source_files(model_file, proto, base_dir))
        if config_defination is None:
            request = arguments_request(
                skip_layers=skip_layers or (), batch_num=batch_num, activation_offset=activation_offset
            )
        else:
            if skip_layers or batch_num != 1 or activation_offset is not True:
                log.warning("config_defination is given, so skip_layers, batch_num and activation_offset are ignored")
            request = load_request(config_defination)
        with blaming_illegal_models(proto, base_dir):
            config = configure(proto, base_dir, request).config
        for finding in config.warnings:
            log.warning("%s", finding)
        if updated_model:
            model = import_model(proto, base_dir)
            log.info("%d nodes got a name", name_nodes(model))
            write_model(build(model), Path(updated_model))
        write_text(config_file, format_json(config))
        log.info("[create_quant_config]: Create quant config file %s success.", config_file)
