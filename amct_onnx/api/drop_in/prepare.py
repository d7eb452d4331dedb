"""``quantize_preprocess`` and ``quantize_model``: models with observers, and the records they fill."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import numpy as np

from amct_onnx.analyse.calibration_model import CalibrationModel, balance_model, range_model
from amct_onnx.analyse.configurable import plan_options
from amct_onnx.analyse.input_wishes import find_inputs
from amct_onnx.analyse.obstacles import weight_obstacle
from amct_onnx.analyse.options import PlanOptions
from amct_onnx.analyse.recorder import RECORDERS
from amct_onnx.analyse.recurrent_scales import recurrent_obstacle, weight_entry
from amct_onnx.analyse.weight_scales import WeightScales
from amct_onnx.api.amct_log import amct_log
from amct_onnx.api.configured import configure
from amct_onnx.api.drop_in.files import absolute, announce, check_paths
from amct_onnx.api.drop_in.layers import plain_layers
from amct_onnx.api.source import blaming_illegal_models, load_source, refuse_compressed, source_files
from amct_onnx.errors import RecordError
from amct_onnx.graph import ExternalNaming, digest
from amct_onnx.graph.files import replacing, write_model
from amct_onnx.passes.base import Refusal
from amct_onnx.passes.locate import Layer
from amct_onnx.passes.recurrent import RecurrentLayer
from amct_onnx.record import LayerRecord, Record, RecordHeader, format_record, load_record
from amct_onnx.rewrite import Prepared


def quantize_preprocess(config_file: str, record_file: str, model_file: str, modified_onnx_file: str) -> None:
    """Write a model whose runs put balance factors (DMQ) into a record.

    Args:
        config_file: JSON config in which at least one layer is balanced.
        record_file: the record, started anew.
        model_file: the model.
        modified_onnx_file: the model to run ``batch_num`` times under ``AMCT_SO``.

    Raises:
        AmctError: see :mod:`amct_onnx.errors`.
    """
    with amct_log() as log:
        check_paths("quantize_preprocess", config_file=config_file, record_file=record_file, model_file=model_file)
        work = _Work(model_file, config_file, [record_file, modified_onnx_file], log)
        work.configured.config.balanced()
        layers = plain_layers(work.prepared, work.options.skip).layers
        made = balance_model(work.prepared, layers, work.options, absolute(record_file), work.sha256)
        record = Record(header=RecordHeader(source_sha256=work.sha256, runs=(0, work.options.feeds or 1)))
        _write_calibration(made, modified_onnx_file, record, record_file)
        log.info("[quantize_preprocess]: run %s %d times", modified_onnx_file, work.options.feeds)


def quantize_model(config_file: str, model_file: str, modified_onnx_file: str, record_file: str) -> None:
    """Quantize weights, and write a model whose runs put activation scales into the record.

    Args:
        config_file: JSON config.
        model_file: the model.
        modified_onnx_file: the model to run ``batch_num`` times under ``AMCT_SO``.
        record_file: the record; started anew, but for the balance factors of :func:`quantize_preprocess`.

    Raises:
        AmctError: see :mod:`amct_onnx.errors`.
    """
    with amct_log() as log:
        check_paths("quantize_model", config_file=config_file, model_file=model_file, record_file=record_file)
        work = _Work(model_file, config_file, [record_file, modified_onnx_file], log)
        prepared = work.balanced_by(record_file)
        survey = plain_layers(prepared, work.options.skip)
        entries, refusals = _weight_entries(prepared, survey.layers, work.options)
        recurrent, more = _recurrent_entries(survey.recurrent, work.options)
        entries.update(recurrent)
        refusals += more
        for refusal in refusals:
            log.warning("layer '%s' stays float: %s", refusal.node, refusal.reason)
        watched = [layer for layer in survey.all_layers if layer.name in entries]
        plain = [layer for layer in survey.layers if layer.name in entries]
        inputs, refused = find_inputs(prepared.model, plain, work.options.tensors)
        for refusal in refused:
            log.warning("input '%s' stays float: %s", refusal.node, refusal.reason)
        entries.update({wish.site.key: LayerRecord(is_tensor_quantize=True) for wish in inputs})
        for name in prepared.skip_fusion:
            entries[name] = replace(entries.get(name, LayerRecord()), skip_fusion=True)
        made = range_model(prepared, watched, inputs, work.options, absolute(record_file), work.sha256)
        record = Record(entries, header=RecordHeader(source_sha256=work.sha256, runs=(0, work.options.feeds or 1)))
        _write_calibration(made, modified_onnx_file, record, record_file)
        log.info("[quantize_model]: %d layers; run %s %d times", len(watched), modified_onnx_file, work.options.feeds)


class _Work:
    """A model and its config, made ready; outputs checked."""

    def __init__(self, model_file: str, config_file: str, outputs: Sequence[str], log: logging.Logger) -> None:
        self.proto, self.base_dir = load_source(model_file)
        refuse_compressed(self.proto)
        inputs = [*source_files(model_file, self.proto, self.base_dir), Path(config_file)]
        announce(log, outputs, inputs)
        with blaming_illegal_models(self.proto, self.base_dir):
            self.configured = configure(self.proto, self.base_dir, config_file)
        self.prepared: Prepared = self.configured.prepared
        for finding in self.configured.config.warnings:
            log.warning("%s", finding)
        self.options: PlanOptions = plan_options(self.configured.config)
        self.sha256 = digest(self.proto, self.base_dir)

    def balanced_by(self, record_file: str) -> Prepared:
        """The model balanced as the config asks, by the factors in a record.

        Raises:
            RecordError: a factor is missing.
        """
        wanted = [name for name, of in self.options.layers.items() if of.migration_strength is not None]
        if not wanted:
            return self.prepared
        found = load_record(record_file).record.layers if Path(record_file).exists() else {}
        lacking = [name for name in wanted if not found.get(name, LayerRecord()).tensor_balance_factor]
        if lacking:
            raise RecordError(
                f"{record_file}: the config balances layer '{lacking[0]}', but the record holds no "
                "tensor_balance_factor for it; call quantize_preprocess and run its model first"
            )
        factors = {name: np.asarray(found[name].tensor_balance_factor, np.float32) for name in wanted}
        return self.prepared.balanced(factors)


def _weight_entries(
    prepared: Prepared, layers: Iterable[Layer], options: PlanOptions
) -> tuple[dict[str, LayerRecord], list[Refusal]]:
    """Entries with everything but activation scales."""
    weights = WeightScales(prepared, options)
    entries: dict[str, LayerRecord] = {}
    refusals: list[Refusal] = []
    for layer in layers:
        weight, bias = weights.constants(layer)
        obstacle = weight_obstacle(weight, bias)
        if obstacle is not None:
            refusals.append(Refusal(layer.name, layer.op_type, *obstacle))
            continue
        scale = weights.choose(layer, weight)
        entries[layer.name] = LayerRecord(
            scale_w=tuple(scale.tolist()),
            offset_w=(0,) * scale.size,
            tensor_balance_factor=tuple(prepared.balance.get(layer.name, np.zeros(0)).tolist()),
            wts_type=None if layer.weight is None else f"INT{options.of(layer.name).weight.bits}",
        )
    return entries, refusals


def _recurrent_entries(
    layers: Iterable[RecurrentLayer], options: PlanOptions
) -> tuple[dict[str, LayerRecord], list[Refusal]]:
    """The same of recurrent layers."""
    found = {layer.name: (layer, recurrent_obstacle(layer, options)) for layer in layers}
    refusals = [Refusal(name, layer.op_type, *obstacle) for name, (layer, obstacle) in found.items() if obstacle]
    entries = {name: weight_entry(layer, options) for name, (layer, obstacle) in found.items() if obstacle is None}
    return entries, refusals


def _write_calibration(made: CalibrationModel, model_path: str, record: Record, record_path: str) -> None:
    """Write both files; the recorder of the process starts over."""
    with ExitStack() as staged:
        write_model(made.model, Path(model_path), ExternalNaming.ONE_FILE, staged=staged)
        staged.enter_context(replacing(Path(record_path))).write_text(format_record(record), encoding="utf-8")
    RECORDERS.forget(made.recorder)
