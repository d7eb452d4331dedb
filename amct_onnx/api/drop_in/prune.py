"""``create_prune_retrain_model``, ``restore_prune_retrain_model`` and ``save_prune_retrain_model``.

AMCT documents them for its PyTorch front end. Here ONNX files stand in place of modules; whatever trains the pruned
model reads and writes them.
"""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Any

from amct_onnx.analyse.shapes import first_feeds
from amct_onnx.api.amct_log import amct_log
from amct_onnx.api.drop_in.files import announce, check_paths, open_files
from amct_onnx.api.drop_in.prune_steps import take_out, take_out_again
from amct_onnx.api.drop_in.retrain_steps import tell, write_both
from amct_onnx.api.drop_in.trained_weights import with_trained
from amct_onnx.api.prune_config import resolve_prune_config
from amct_onnx.api.saving import check_outputs, prefixed_paths
from amct_onnx.api.source import load_source, refuse_compressed, source_files
from amct_onnx.config.retrain import Flow
from amct_onnx.graph import BuiltModel, ExternalNaming, build, import_model
from amct_onnx.graph.files import write_model
from amct_onnx.record import load_record
from amct_onnx.rewrite import OutputForm

_NAMING = {OutputForm.ASCEND: ExternalNaming.DEPLOY, OutputForm.FAKE_QUANT: ExternalNaming.FAKE_QUANT}


def create_prune_retrain_model(
    model_file: str, input_data: Any, config_defination: str, record_file: str, modified_onnx_file: str
) -> None:
    """Write the pruned model, to be trained on, and the record of what went.

    Args:
        model_file: the model.
        input_data: one feed, whose shapes are taken for free ones: a dict by input name, arrays in input order, or one
            array; None for usual sizes.
        config_defination: config with a ``prune_config``: channels go, or of every four weights two, the smallest.
        record_file: the record, started anew.
        modified_onnx_file: the pruned model.

    Raises:
        AmctError: see :mod:`amct_onnx.errors`.
    """
    function = "create_prune_retrain_model"
    with amct_log() as log:
        check_paths(function, config_defination=config_defination)
        outputs = {"record_file": record_file, "modified_onnx_file": modified_onnx_file}
        open_files(log, function, model_file, inputs={"config_defination": config_defination}, outputs=outputs)
        sizes = _sizes(model_file, input_data)
        config = resolve_prune_config(model_file, config_defination, input_shapes=sizes, flow=Flow.PRUNE)
        done = take_out(model_file, config, sizes)
        tell(log, done.notes)
        write_both(done.built, modified_onnx_file, done.record, record_file)
        log.info("[%s]: %s, saved in %s", function, done.summary, modified_onnx_file)


def restore_prune_retrain_model(
    model_file: str,
    input_data: Any,
    record_file: str,
    config_defination: str | None,
    weights_file: str | None,
    modified_onnx_file: str,
) -> None:
    """Write the pruned model again, from a record and the weights it was trained to.

    Args:
        model_file: the model that was pruned.
        input_data: one feed as for :func:`create_prune_retrain_model`.
        record_file: its record.
        config_defination: the config it was pruned by, which is checked; the record alone says what goes.
        weights_file: an .npz file of arrays, or an .onnx file of initializers, by the names of the pruned model's; what
            it does not hold stays as it was. None for the weights of `model_file`.
        modified_onnx_file: the pruned model.

    Raises:
        RecordError: the record does not fit the model.
        AmctError: see :mod:`amct_onnx.errors`.
    """
    function = "restore_prune_retrain_model"
    with amct_log() as log:
        check_paths(function, record_file=record_file)
        inputs = {"record_file": record_file, "config_defination": config_defination, "weights_file": weights_file}
        outputs = {"modified_onnx_file": modified_onnx_file}
        open_files(log, function, model_file, inputs=inputs, outputs=outputs)
        sizes = _sizes(model_file, input_data)
        if config_defination is not None:
            resolve_prune_config(model_file, config_defination, input_shapes=sizes, flow=Flow.PRUNE).check_removes()
        loaded = load_record(record_file)
        done = take_out_again(model_file, loaded, sizes)
        tell(log, done.notes)
        built = done.built if weights_file is None else with_trained(done.built, Path(weights_file), loaded)
        write_model(built, Path(modified_onnx_file), ExternalNaming.ONE_FILE)
        log.info("[%s]: %s, saved in %s", function, done.summary, modified_onnx_file)


def save_prune_retrain_model(modified_onnx_file: str, save_path: str, input_data: Any = None) -> None:
    """Write a pruned and trained model as deploy and as fake-quant model, which hold the same.

    Args:
        modified_onnx_file: the model.
        save_path: folder and beginning of the names of ``_deploy_model.onnx`` and ``_fake_quant_model.onnx``.
        input_data: not needed here; AMCT runs its module on it.

    Raises:
        AmctError: see :mod:`amct_onnx.errors`.
    """
    with amct_log() as log:
        check_paths("save_prune_retrain_model", modified_onnx_file=modified_onnx_file, save_path=save_path)
        proto, base_dir = load_source(modified_onnx_file)
        refuse_compressed(proto)
        paths = prefixed_paths(save_path, {form.value: form.suffix for form in _NAMING})
        inputs = source_files(modified_onnx_file, proto, base_dir)
        check_outputs(paths, inputs)
        announce(log, [str(path) for path in paths.values()], inputs)
        built: BuiltModel = build(import_model(proto, base_dir))
        with ExitStack() as staged:
            for form, naming in _NAMING.items():
                write_model(built, paths[form.value], naming, staged=staged)
        for form in _NAMING:
            log.info("[Utils]: The model file is saved in %s", paths[form.value])


def _sizes(model_file: str, input_data: Any) -> dict[str, tuple[int, ...]] | None:
    """Input -> shape, as a feed has them."""
    if input_data is None:
        return None
    proto, base_dir = load_source(model_file)
    (feed,) = first_feeds(proto, base_dir, [input_data], 1)
    return {name: array.shape for name, array in feed.items()}
