"""Everything that a retrain config asks for: channels pruned, weights thinned out 4:2, layers quantized."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from onnx import ModelProto

from amct_onnx.analyse.fitting.data import FittingData
from amct_onnx.analyse.pruning.options import Importance
from amct_onnx.analyse.sparsity.options import Selection
from amct_onnx.analyse.walk import Progress
from amct_onnx.api.compress import ALL_FORMS, as_forms, as_target, stored_like
from amct_onnx.api.given import walkable
from amct_onnx.api.prune import prune
from amct_onnx.api.prune_config import PruneConfigSource, configure_pruning, retrain_notes
from amct_onnx.api.prune_result import PruneReport
from amct_onnx.api.prune_source import load_float, prune_source
from amct_onnx.api.result import CompressionResult
from amct_onnx.api.retrain_quantize import quantize_as_configured
from amct_onnx.api.source import Source, blaming_illegal_models, source_files
from amct_onnx.api.sparse_result import SparsifyReport
from amct_onnx.api.sparsify import as_selection
from amct_onnx.api.thin_out import thin_out_model
from amct_onnx.api.trial import FITTED_TO, try_models
from amct_onnx.config.retrain import Flow, RetrainConfig
from amct_onnx.errors import ArgumentError, ConfigError
from amct_onnx.graph import BuiltModel, digest
from amct_onnx.graph.functions import inline_layer_functions
from amct_onnx.passes.insert_qdq import QdqTarget
from amct_onnx.record import PruneRecord, Record, RecordHeader, WeightState
from amct_onnx.rewrite import OutputForm


@dataclass(frozen=True)
class CombinedResult:
    """What became of a model.

    Attributes:
        result: the quantized models, the modified float model, and one record of everything.
        pruned: what became of its channels; None where none were to go.
        thinned: what became of its weights; None where none were to go.
    """

    result: CompressionResult
    pruned: PruneReport | None
    thinned: SparsifyReport | None


@dataclass(frozen=True)
class _Structure:
    """A float model on the way.

    Attributes:
        proto: the model.
        base_dir: folder of its external weights.
        built: what is saved of it; None for the source.
        records: what went.
        state: whether weights changed that no record holds.
    """

    proto: ModelProto
    base_dir: Path | None
    built: BuiltModel | None = None
    records: tuple[PruneRecord, ...] = ()
    state: WeightState = WeightState.RECOMPUTABLE

    def then(self, built: BuiltModel, records: tuple[PruneRecord, ...], state: WeightState) -> _Structure:
        """The next one, made from this."""
        modified = self.state.is_modified or state.is_modified
        built = built if self.built is None else built.stored_like(self.built)
        return _Structure(
            *built.to_source(),
            built,
            (*self.records, *records),
            WeightState.MODIFIED if modified else WeightState.RECOMPUTABLE,
        )


def compress(
    model: Source,
    data: Any,
    *,
    config: PruneConfigSource,
    formats: Sequence[OutputForm | str] = ALL_FORMS,
    qdq_target: QdqTarget | str = QdqTarget.ONNXRUNTIME,
    importance: Importance | str | None = None,
    selection: Selection | str | None = None,
    recover: bool = True,
    trial: bool = True,
    progress: Progress | None = None,
) -> CombinedResult:
    """Do what a retrain config asks for, without training: prune channels, thin weights out, quantize, in this order.

    Args:
        model: path of an ONNX file, or a ModelProto (not changed).
        data: calibration feeds as for :func:`amct_onnx.quantize`, which can be walked several times.
        config: path of an AMCT retrain config, or one read by :mod:`amct_onnx.config.retrain`.
        formats: which of ``ascend``, ``fake_quant``, ``qdq`` to make, where the config quantizes layers.
        qdq_target: ``onnxruntime`` or ``tensorrt``.
        importance: how channels are ranked, see :func:`amct_onnx.prune`.
        selection: which weights stay, see :func:`amct_onnx.sparsify`; ``compensated`` by default.
        recover: fit layers that lost inputs to the float model's results again; without, the weights that stay are
            those of the source, and weights are thinned out by size unless `selection` says otherwise.
        trial: run every runnable form beside the float model on the first feeds.
        progress: wraps the iterator of feeds of every walk over the data.

    Raises:
        AmctError: see :mod:`amct_onnx.errors`.
    """
    if data is None:
        raise ArgumentError("{data} is needed: layers are quantized by what they are fed; give some")
    forms, target = as_forms(formats), as_target(qdq_target, formats)
    chosen = as_selection(selection or (Selection.COMPENSATED if recover else Selection.L1), data)
    given = FittingData(walkable(data, "compressing"), progress=progress)
    whole, base_dir = load_float(model)
    with blaming_illegal_models(whole, base_dir):
        source = prune_source(whole, base_dir, data=given.data)
        resolved = configure_pruning(source.proto, base_dir, source.shapes, config, Flow.COMPRESSED)
    _check_asks(resolved)
    structure = _Structure(whole, base_dir)
    pruned: PruneReport | None = None
    thinned: SparsifyReport | None = None
    if resolved.with_pruning():
        outcome = prune(
            model, given.data, config=resolved, importance=importance, recover=recover, trial=False, progress=progress
        )
        # What pruning alone would leave undone is done below, and warnings are told once.
        said = retrain_notes(resolved, channels=True)
        pruned = replace(outcome.report, notes=tuple(note for note in outcome.report.notes if note not in said))
        state = outcome.record.header.weights if outcome.record.header else WeightState.RECOMPUTABLE
        structure = structure.then(outcome.model, outcome.record.prune, state)
    if resolved.sparse():
        structure, thinned = _thin(structure, resolved, chosen, given)
    result = quantize_as_configured(structure.proto, structure.base_dir, resolved, given, forms, target)
    timed = {OutputForm.QDQ} if target is QdqTarget.ONNXRUNTIME else set()
    trials = try_models(whole, base_dir, result.models, source.samples if trial else (), timed=timed)
    header = RecordHeader(source_sha256=digest(whole, base_dir), weights=structure.state)
    if structure.built is not None:
        header = replace(header, modified_sha256=digest(structure.proto, structure.base_dir))
    record = Record(layers=result.record.layers, prune=structure.records, header=header)
    read = [Path(config)] if isinstance(config, str | os.PathLike) else []
    files = (*source_files(model, whole, base_dir), *read)
    notes = (*retrain_notes(resolved, channels=True, weights=True, scales=True), *result.report.notes)
    if trials and structure.state.is_modified:
        notes = (*notes, FITTED_TO)
    report = replace(result.report, notes=notes, trials=trials)
    models = result.models if structure.built is None else stored_like(result.models, structure.built)
    result = replace(result, record=record, models=models, modified=structure.built, source=files, report=report)
    return CombinedResult(result, pruned, thinned)


def _check_asks(config: RetrainConfig) -> None:
    """Raise :class:`ConfigError` where a config does nothing to any layer."""
    if config.quantized():
        return
    if config.asks_pruning or config.asks_sparsity:
        config.check_removes()
        return
    raise ConfigError(
        f"{config.source} asks for nothing that this model has layers for; add a prune_config, a "
        "retrain_data_quant_config or a retrain_weight_quant_config, or skip fewer layers"
    )


def _thin(
    structure: _Structure, config: RetrainConfig, selection: Selection, given: FittingData
) -> tuple[_Structure, SparsifyReport]:
    proto = inline_layer_functions(structure.proto, structure.base_dir)
    left = {name: layer.why_dense for name, layer in config.layers.items() if layer.sparsity is None}
    thin = thin_out_model(proto, structure.base_dir, left, selection, given)
    report = SparsifyReport(thin.summaries, thin.refusals, thin.notes)
    return structure.then(thin.built, thin.records, thin.state), report
