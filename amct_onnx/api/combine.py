"""Everything that a retrain config asks for: channels pruned, weights thinned out 4:2, layers quantized."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from onnx import ModelProto

from amct_onnx.analyse.fitting.data import FittingData
from amct_onnx.analyse.pruning.options import Importance
from amct_onnx.analyse.sparsity.options import Selection
from amct_onnx.analyse.walk import Progress
from amct_onnx.api.compress import ALL_FORMS, as_forms, as_target, stored_like
from amct_onnx.api.configured import check_feeds
from amct_onnx.api.given import walkable
from amct_onnx.api.prune_config import PruneConfigSource, configure_pruning, retrain_notes
from amct_onnx.api.prune_result import PruneReport
from amct_onnx.api.prune_source import load_float, prune_source
from amct_onnx.api.removal import FloatModel, remove
from amct_onnx.api.result import CompressionResult, SavedFiles
from amct_onnx.api.retrain_quantize import quantize_as_configured, unquantized
from amct_onnx.api.source import Source, blaming_illegal_models, source_files
from amct_onnx.api.sparse_result import SparsifyReport
from amct_onnx.api.sparsify import as_selection
from amct_onnx.api.trial import FITTED_TO, try_models, try_modified
from amct_onnx.config.retrain import Flow, RetrainConfig
from amct_onnx.errors import ArgumentError, ConfigError, NothingToCompressError
from amct_onnx.graph import digest
from amct_onnx.passes.insert_qdq import QdqTarget
from amct_onnx.record import Record, RecordHeader
from amct_onnx.rewrite import OutputForm


@dataclass(frozen=True)
class CombinedResult:
    """What became of a model.

    Attributes:
        result: the quantized models, the modified float model, and one record of everything.
        pruned: what became of its channels; None where none went.
        thinned: what became of its weights; None where none went.
    """

    result: CompressionResult
    pruned: PruneReport | None
    thinned: SparsifyReport | None

    def model(self, form: OutputForm | str) -> ModelProto:
        """One quantized model, see :meth:`CompressionResult.model`; ``result.modified`` is the float one."""
        return self.result.model(form)

    def save(self, prefix: str | Path, *, protect: Iterable[Path] = ()) -> SavedFiles:
        """Write the models, the modified float model where there is one, and the plan as ``PREFIX_...``.

        All of them, or nothing; see :meth:`CompressionResult.save`.

        Args:
            prefix: folder and beginning of the file names; folders are made.
            protect: further files that must not be overwritten.
        """
        return self.result.save(prefix, protect=protect)


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
        NothingToCompressError: no step did anything to any layer; a step that alone did nothing is told in a note.
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
    if resolved.quantized():
        check_feeds(given.data, resolved)
    removal = remove(
        model,
        FloatModel(whole, base_dir),
        resolved,
        given,
        importance=importance,
        selection=chosen,
        recover=recover,
    )
    left = removal.model
    result, unfit = _quantize(left, resolved, given, forms, target)
    idle = (*resolved.idle_parts(), *removal.idle, *unfit)
    if left.built is None and not result.models:
        raise NothingToCompressError("; ".join(idle))
    if result.models or left.built is None:
        timed = {OutputForm.QDQ} if target is QdqTarget.ONNXRUNTIME else set()
        trials = try_models(whole, base_dir, result.models, source.samples if trial else (), timed=timed)
    else:
        is_smaller = removal.pruned is not None
        trials = try_modified(whole, base_dir, left.built, source.samples if trial else (), is_timed=is_smaller)
    header = RecordHeader(source_sha256=digest(whole, base_dir), weights=left.state)
    if left.built is not None:
        header = replace(header, modified_sha256=digest(left.proto, left.base_dir))
        result = replace(result, models=stored_like(result.models, left.built), modified=left.built)
    record = Record(layers=result.record.layers, prune=left.records, header=header)
    read = [Path(config)] if isinstance(config, str | os.PathLike) else []
    files = (*source_files(model, whole, base_dir), *read)
    notes = (
        *retrain_notes(resolved, channels=True, weights=True, scales=True),
        *idle,
        *result.report.notes,
        *([FITTED_TO] if trials and left.state.is_modified else []),
    )
    result = replace(result, record=record, source=files, report=replace(result.report, notes=notes, trials=trials))
    return CombinedResult(result, removal.pruned, removal.thinned)


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


def _quantize(
    left: FloatModel, config: RetrainConfig, given: FittingData, forms: Sequence[OutputForm], target: QdqTarget
) -> tuple[CompressionResult, tuple[str, ...]]:
    """The quantized models, and what is to be said where no layer can be quantized."""
    try:
        return quantize_as_configured(left.proto, left.base_dir, config, given, forms, target), ()
    except NothingToCompressError as fault:
        return unquantized(), (f"{config.source}: {fault}",)
