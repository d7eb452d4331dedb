"""What a retrain config takes out of a float model before it is quantized: channels first, then weights."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from onnx import ModelProto

from amct_onnx.analyse.cost import Shapes
from amct_onnx.analyse.fitting.data import FittingData
from amct_onnx.analyse.pruning.options import Importance
from amct_onnx.analyse.shapes import find_shapes, first_feeds
from amct_onnx.analyse.sparsity.options import Selection
from amct_onnx.api.prune import prune
from amct_onnx.api.prune_config import retrain_notes
from amct_onnx.api.prune_result import PruneReport
from amct_onnx.api.source import Source
from amct_onnx.api.sparse_result import SparsifyReport
from amct_onnx.api.thin_out import ThinModel, thin_out_model
from amct_onnx.config.retrain import RetrainConfig
from amct_onnx.errors import NothingToCompressError
from amct_onnx.graph import BuiltModel
from amct_onnx.graph.functions import inline_layer_functions
from amct_onnx.record import PruneRecord, WeightState


@dataclass(frozen=True)
class FloatModel:
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

    def then(self, built: BuiltModel, records: tuple[PruneRecord, ...], state: WeightState) -> FloatModel:
        """The next one, made from this."""
        modified = self.state.is_modified or state.is_modified
        built = built if self.built is None else built.stored_like(self.built)
        return FloatModel(
            *built.to_source(),
            built,
            (*self.records, *records),
            WeightState.MODIFIED if modified else WeightState.RECOMPUTABLE,
        )


@dataclass(frozen=True)
class Removal:
    """What was taken out of a model.

    Attributes:
        model: what is left.
        pruned: what became of its channels; None where none went.
        thinned: what became of its weights; None where none went.
        idle: what the config asks for and no layer gave, a sentence each.
    """

    model: FloatModel
    pruned: PruneReport | None = None
    thinned: SparsifyReport | None = None
    idle: tuple[str, ...] = ()

    def without(self, config: RetrainConfig, fault: NothingToCompressError) -> Removal:
        """The same where a step found nothing to do."""
        return replace(self, idle=(*self.idle, f"{config.source}: {fault}"))


def remove(
    source: Source,
    model: FloatModel,
    config: RetrainConfig,
    given: FittingData,
    *,
    importance: Importance | str | None,
    selection: Selection,
    recover: bool,
) -> Removal:
    """Take out what a config asks for; a step that no layer gives anything to is passed over, with the reason.

    Args:
        source: the model as it was given.
        model: the same, read.
        config: the config, resolved for it.
        given: the feeds.
        importance: how channels are ranked.
        selection: which weights stay.
        recover: whether layers that lost inputs are fitted again.
    """
    done = Removal(model)
    if config.with_pruning():
        try:
            done = _prune(source, done, config, given, importance, recover=recover)
        except NothingToCompressError as fault:
            done = done.without(config, fault)
    if config.sparse():
        try:
            done = _thin(done, config, selection, given)
        except NothingToCompressError as fault:
            done = done.without(config, fault)
    return done


def _prune(
    source: Source,
    done: Removal,
    config: RetrainConfig,
    given: FittingData,
    importance: Importance | str | None,
    *,
    recover: bool,
) -> Removal:
    outcome = prune(
        source,
        given.data,
        config=config,
        importance=importance,
        recover=recover,
        trial=False,
        progress=given.progress,
    )
    # What pruning alone would leave undone is done later, and warnings are told once.
    said = retrain_notes(config, channels=True)
    report = replace(outcome.report, notes=tuple(note for note in outcome.report.notes if note not in said))
    state = outcome.record.header.weights if outcome.record.header else WeightState.RECOMPUTABLE
    return replace(done, model=done.model.then(outcome.model, outcome.record.prune, state), pruned=report)


def _thin(done: Removal, config: RetrainConfig, selection: Selection, given: FittingData) -> Removal:
    model = done.model
    proto = inline_layer_functions(model.proto, model.base_dir)
    (feed,) = first_feeds(proto, model.base_dir, given.data, 1)
    shapes = find_shapes(proto, model.base_dir, feed).shapes
    thin = thin_as_configured(proto, model.base_dir, config, selection, given, shapes=shapes)
    report = SparsifyReport(thin.summaries, thin.refusals, thin.notes, saving=thin.saving)
    return replace(done, model=model.then(thin.built, thin.records, thin.state), thinned=report)


def thin_as_configured(
    proto: ModelProto,
    base_dir: Path | None,
    config: RetrainConfig,
    selection: Selection,
    given: FittingData,
    *,
    shapes: Shapes | None = None,
) -> ThinModel:
    """Thin out the layers of a model that a config names.

    Args:
        proto: the model that the config was resolved for, or the same without channels; its functions with layers
            inlined.
        base_dir: folder of its external weights.
        config: the config.
        selection: which weights stay.
        given: the feeds, for all selections but that by size.
        shapes: sizes of the model's tensors, which tell what zeros save.

    Raises:
        NothingToCompressError: no layer can be thinned out.
    """
    left = {name: layer.why_dense for name, layer in config.layers.items() if layer.sparsity is None}
    return thin_out_model(proto, base_dir, left, selection, given, shapes=shapes)
