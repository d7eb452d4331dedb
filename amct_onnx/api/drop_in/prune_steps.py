"""Channels and weights taken out of a model by a config, or again by a record: the steps behind AMCT's functions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from amct_onnx.analyse.fitting.data import FittingData
from amct_onnx.analyse.pruning.options import Importance
from amct_onnx.analyse.sparsity.options import Selection
from amct_onnx.api.prune import prune, restore_pruned
from amct_onnx.api.prune_config import retrain_notes
from amct_onnx.api.prune_result import PruneReport
from amct_onnx.api.removal import thin_as_configured
from amct_onnx.api.source import Source
from amct_onnx.api.sparse_result import SparsifyReport
from amct_onnx.api.sparsify import restore_sparse, sparsify
from amct_onnx.config.retrain import RetrainConfig
from amct_onnx.errors import RecordError
from amct_onnx.graph import BuiltModel
from amct_onnx.record import LoadedRecord, Record
from amct_onnx.wording import counted

Sizes = Mapping[str, tuple[int, ...]]


@dataclass(frozen=True)
class TakenOut:
    """A model of another structure.

    Attributes:
        built: the model.
        record: what went; None where a record said it.
        notes: what a user should know.
        summary: what went, in words.
    """

    built: BuiltModel
    record: Record | None
    notes: tuple[str, ...]
    summary: str


def take_out(model: str, config: RetrainConfig, sizes: Sizes | None) -> TakenOut:
    """Prune channels and thin weights out by their sizes, as a config asks.

    Args:
        model: path of the model.
        config: the config, resolved for it.
        sizes: input -> sizes to take for the free ones.

    Raises:
        ConfigError: it does neither to any layer.
    """
    config.check_removes()
    if not config.sparse():
        pruned = prune(model, config=config, importance=Importance.L2, input_shapes=sizes)
        return TakenOut(pruned.model, pruned.record, pruned.report.notes, _pruned_words(pruned.report))
    if not config.with_pruning():
        thin = sparsify(model, config=config, selection=Selection.L1, input_shapes=sizes)
        return TakenOut(thin.model, thin.record, thin.report.notes, _thin_words(thin.report))
    first = prune(model, config=config, importance=Importance.L2, input_shapes=sizes)
    second = thin_as_configured(*first.model.to_source(), config, Selection.L1, FittingData(None))
    # What pruning alone would leave undone is done here, and warnings are told once.
    said = [note for note in first.report.notes if note not in retrain_notes(config, channels=True)]
    return TakenOut(
        second.built.stored_like(first.model),
        replace(first.record, prune=(*first.record.prune, *second.records)),
        tuple(dict.fromkeys((*retrain_notes(config, channels=True, weights=True), *said))),
        f"{_pruned_words(first.report)}; {_thin_words(SparsifyReport(second.summaries, second.refusals))}",
    )


def take_out_again(model: Source, loaded: LoadedRecord, sizes: Sizes | None) -> TakenOut:
    """Take out of a model what a record names.

    Args:
        model: the model that the record was made for.
        loaded: the record.
        sizes: input -> sizes to take for the free ones.

    Raises:
        RecordError: the record takes nothing out, or does not fit the model.
    """
    if loaded.record.takes_channels:
        pruned = restore_pruned(model, loaded, input_shapes=sizes)
        return TakenOut(pruned.model, None, pruned.report.notes, _pruned_words(pruned.report))
    if not loaded.record.prune:
        raise RecordError(f"{loaded.source}: it holds no prune_record, so there is nothing to take out of the model")
    thin = restore_sparse(model, loaded)
    return TakenOut(thin.model, None, thin.report.notes, _thin_words(thin.report))


def _pruned_words(report: PruneReport) -> str:
    layers = sum(len(group.layers) for group in report.groups if group.removed)
    return f"{counted(layers, 'layer')} pruned, parameters {report.before.parameters} -> {report.after.parameters}"


def _thin_words(report: SparsifyReport) -> str:
    return f"{counted(len(report.layers), 'layer')} thinned out, {report.zeros} of {report.weights} weights zero"
