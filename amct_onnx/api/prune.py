"""Prune the channels of a model."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from amct_onnx.analyse.cost import Shapes, model_cost, nodes_cost
from amct_onnx.analyse.fitting.biases import shift_bias
from amct_onnx.analyse.fitting.data import FittingData
from amct_onnx.analyse.fitting.evidence import data_notes
from amct_onnx.analyse.fitting.refit import layers_to_refit, refit
from amct_onnx.analyse.pruning.channel_sensitivity import ChannelSensitivity
from amct_onnx.analyse.pruning.choose import choose
from amct_onnx.analyse.pruning.constants import constant_shifts
from amct_onnx.analyse.pruning.options import Importance, PruneOptions
from amct_onnx.analyse.pruning.plan import GroupPlan
from amct_onnx.analyse.walk import Progress
from amct_onnx.api.assemble import plain_record
from amct_onnx.api.belonging import TAKEN_AS_IT_IS, check_belongs, is_modified_model
from amct_onnx.api.given import walkable
from amct_onnx.api.prune_arguments import AutoConfigSource, PruneArguments, as_auto_config, as_importance
from amct_onnx.api.prune_check import check_runs
from amct_onnx.api.prune_config import PruneConfigSource
from amct_onnx.api.prune_result import GroupSummary, PruneReport, PruneResult
from amct_onnx.api.prune_source import PruneSource, load_float, prune_source
from amct_onnx.api.skipped import check_skipped
from amct_onnx.api.source import Source, blaming_illegal_models, source_files
from amct_onnx.api.structure_record import structure_alone
from amct_onnx.api.thin_out import masked_by_record
from amct_onnx.api.trial import FITTED_TO, try_pruned
from amct_onnx.errors import ArgumentError, NothingToCompressError, RecordError
from amct_onnx.graph import BuiltModel, build, digest, import_model
from amct_onnx.passes.drop_dead import DropDeadConstants
from amct_onnx.passes.pruning.groups import Group
from amct_onnx.passes.pruning.labels import LabelArray
from amct_onnx.record import LoadedRecord, Record, RecordHeader, WeightState, load_record
from amct_onnx.rewrite.pruning import (
    Prunable,
    kept_results,
    layers_in_loops,
    lost_inputs,
    lost_places,
    open_prunable,
    prune_model,
    prune_records,
    units_of_records,
)

_NOT_RUN = (
    "the pruned model was not run, since the float model itself does not run at the sizes taken; give sizes at which "
    "it does with --input-shape (input_shapes), or --data"
)


def prune(
    model: Source,
    data: Any = None,
    *,
    ratio: float | None = None,
    saving: float | None = None,
    ascend_optimized: bool = False,
    skip: Collection[str] = (),
    importance: Importance | ChannelSensitivity | str | None = None,
    recover: bool | None = None,
    trial: bool = True,
    config: PruneConfigSource | None = None,
    auto_config: AutoConfigSource | None = None,
    input_shapes: Mapping[str, Sequence[int]] | None = None,
    progress: Progress | None = None,
) -> PruneResult:
    """Take the least important channels out of a model.

    Args:
        model: path of an ONNX file, or a ModelProto (not changed).
        data: calibration feeds as for :func:`amct_onnx.quantize`, which can be walked several times; without them
            channels are ranked by weights, and nothing is recovered.
        ratio: share of each layer's output channels that goes, above 0 and below 1.
        saving: share of the model's multiply-adds that goes, in place of a ratio: how much of each layer is then found
            from data, by what the results lose.
        ascend_optimized: leave a multiple of 16 channels; with `saving` it is 8 without this, which runtimes' fast
            convolutions want.
        skip: layers whose output channels all stay.
        importance: how channels are ranked: ``l2`` (without data the default), ``bn_scale``, and from data ``energy``,
            ``taylor`` or ``reconstruction`` (with data the default); or an object of yours that tells what each is
            worth.
        recover: fit the layers that lost inputs to the float model's results again; by default with data.
        trial: with data, run the pruned model beside the float model on the first feeds.
        config: path of an AMCT retrain config, or one read by :mod:`amct_onnx.config.retrain`; takes the place of
            `ratio`, `ascend_optimized` and `skip`.
        auto_config: path of an AMCT config for a search (``AutoChannelPruneConfig``), or one read by
            :mod:`amct_onnx.config.auto_prune`; takes the place of `saving` and of all that `config` does.
        input_shapes: input -> sizes to take for the free ones while following channels.
        progress: wraps the iterator of feeds of every walk over the data.

    Raises:
        AmctError: see :mod:`amct_onnx.errors`.
    """
    wanted = PruneArguments(
        ratio=ratio,
        saving=saving,
        ascend_optimized=ascend_optimized,
        skip=(skip,) if isinstance(skip, str) else tuple(skip),
        importance=as_importance(importance, data),
        config=config,
        auto_config=as_auto_config(auto_config),
    )
    wanted.check(data)
    given = _given(data, recover, progress)
    recover = given.data is not None if recover is None else recover
    whole, base_dir = load_float(model)
    with blaming_illegal_models(whole, base_dir), wanted.naming_the_line():
        source = prune_source(whole, base_dir, data=given.data, input_shapes=input_shapes)
        check_skipped(source.proto, base_dir, wanted.skip)
        options, notes = wanted.resolve(source.proto, base_dir, source.shapes)
        result = _pruned(source, options, given, recover=recover)
        is_run = check_runs(result.model, whole, base_dir, source.feed)
        trials = try_pruned(whole, base_dir, result.model, source.samples if trial else ())
        header = replace(
            result.record.header or RecordHeader(),
            source_sha256=digest(whole, base_dir),
            modified_sha256=digest(*result.model.to_source()),
        )
    notes = (*source.notes, *notes, *wanted.data_notes(given.data), *(() if is_run else (_NOT_RUN,)))
    if trials and result.report.fitted:
        notes = (*notes, FITTED_TO)
    report = replace(result.report, notes=(*result.report.notes, *notes), trials=trials)
    files = (*source_files(model, whole, base_dir), *wanted.files)
    return replace(result, record=replace(result.record, header=header), report=report, source=files)


def _given(data: Any, recover: bool | None, progress: Progress | None) -> FittingData:
    if recover and data is None:
        raise ArgumentError("{recover} fits layers on {data}; give {data}, or leave {recover} out")
    return FittingData(walkable(data, "pruning"), progress=progress)


def restore_pruned(
    model: Source,
    record: str | os.PathLike[str] | Record | LoadedRecord,
    *,
    structure_only: bool = False,
    input_shapes: Mapping[str, Sequence[int]] | None = None,
) -> PruneResult:
    """Take out of a model the channels that a record names.

    Args:
        model: the model the record was made for, or the modified model whose digest it carries, which stays as it is;
            with `structure_only` any of the same structure.
        record: path of the record file, or a record.
        structure_only: take the record for a model with other weights, too; the result's record is then that of the
            structure alone, for this model.
        input_shapes: input -> sizes to take for the free ones while following channels.

    Raises:
        RecordError: the record cannot be read, breaks a rule, or does not fit the model.
    """
    loaded = record if isinstance(record, Record | LoadedRecord) else load_record(record)
    plain = plain_record(loaded)
    source = loaded.source if isinstance(loaded, LoadedRecord) else "record"
    if not any(entry.producers for entry in plain.prune):
        raise RecordError(f"{source}: it holds no prune_record with producers, so there is nothing to prune")
    whole, base_dir = load_float(model)
    read = [Path(record)] if isinstance(record, str | os.PathLike) else []
    files = (*source_files(model, whole, base_dir), *read)
    if not structure_only and is_modified_model(plain, whole, base_dir):
        report = prune_groups(model, input_shapes=input_shapes)
        groups = tuple(replace(group, reason=group.reason or _GONE) for group in report.groups)
        report = replace(report, groups=groups, notes=(TAKEN_AS_IT_IS,))
        return PruneResult(plain, build(import_model(whole, base_dir)), report, files)
    notes = () if structure_only else tuple(check_belongs(loaded, whole, base_dir))
    with blaming_illegal_models(whole, base_dir):
        opened = prune_source(whole, base_dir, input_shapes=input_shapes)
        shapes = opened.shapes
        prunable = open_prunable(opened.proto, base_dir, shapes)
        units = _units(prunable, plain, source, opened)
        before = model_cost(prunable.model, shapes)
        gone = set(units.tolist())
        summaries = tuple(
            _summary(group, sum(unit in gone for unit in group.units.tolist()), "", shapes) for group in prunable.groups
        )
        built = _taken_out(prunable, units, opened)
        if any(entry.selective_prune for entry in plain.prune):
            thin, said = masked_by_record(*built.to_source(), plain, source, structure_only=structure_only)
            built, notes = thin.built.stored_like(built), (*notes, *said)
        check_runs(built, whole, base_dir, opened.feed)
    after = model_cost(prunable.model, shapes)
    kept, left_out = structure_alone(plain, whole, base_dir) if structure_only else (plain, ())
    report = PruneReport(summaries, before, after, (*opened.notes, *notes, *left_out), sizes=opened.sizes)
    return PruneResult(kept, built, report, files)


def _units(prunable: Prunable, record: Record, name: str, opened: PruneSource) -> LabelArray:
    """The units that a record takes out; what does not fit may lie in sizes other than those it was made at."""
    try:
        return units_of_records(prunable, record.prune, name)
    except RecordError as fault:
        told = opened.notes or tuple(filter(None, [opened.remedy]))
        raise RecordError("; ".join([str(fault), *told])) from None


def _pruned(source: PruneSource, options: PruneOptions, given: FittingData, *, recover: bool) -> PruneResult:
    proto, base_dir, shapes = source.proto, source.base_dir, source.shapes
    prunable = open_prunable(proto, base_dir, shapes, options.skip)
    chosen = choose(prunable, proto, base_dir, shapes, options, given)
    plans, found = chosen.plans, chosen.evidence
    removed = {plan.group.name: plan.removed for plan in plans if plan.removed.size}
    if not removed:
        raise NothingToCompressError(f"no channel of the model can be pruned; {_reasons(plans, source)}")
    before = model_cost(prunable.model, shapes)
    summaries = tuple(
        _summary(plan.group, int(plan.removed.size), plan.reason, shapes, aligned=plan.aligned) for plan in plans
    )
    records = prune_records(prunable, removed)
    units = np.concatenate(list(removed.values()))
    # What a layer gives at places that are no more cannot be compared with what the float model gives there.
    torn = lost_places(prunable, units)
    lost = [name for name in lost_inputs(prunable, units) if name not in torn]
    kept = kept_results(prunable, units)
    built = _taken_out(prunable, units, source)
    if recover:
        layers = layers_to_refit(prunable.model, lost, kept)
        found = refit(prunable.model, layers, proto, base_dir, given)
        built = build(prunable.model)
    fitted = tuple(name for name, one in found.items() if one.is_fitted)
    state = WeightState.MODIFIED if fitted else WeightState.RECOMPUTABLE
    record = Record(prune=records, header=RecordHeader(weights=state))
    notes = (*((chosen.note,) if chosen.note else ()), *_loop_notes(prunable), *data_notes(found))
    losses = {name: one.lost for name, one in found.items() if one.lost is not None}
    after = model_cost(prunable.model, shapes)
    report = PruneReport(summaries, before, after, notes, fitted, losses, sizes=source.sizes)
    return PruneResult(record, built, report)


def _taken_out(prunable: Prunable, units: LabelArray, source: PruneSource) -> BuiltModel:
    """The model without these units; what constant channels added stays in the biases of their readers."""
    shifts = constant_shifts(prunable, units, source.proto, source.base_dir, [source.feed])
    kept = kept_results(prunable, units)
    built = prune_model(prunable, units)
    if not shifts:
        return built
    nodes = {str(node.name): node for node in prunable.model.graph.nodes}
    for name, shift in shifts.items():
        shift_bias(prunable.model, nodes[name], shift[kept[name]])
    DropDeadConstants().run(prunable.model)
    return build(prunable.model)


_GONE = "what the record takes out is gone already"
_NO_LAYER = "it has no Conv, Gemm or MatMul in float"


def _reasons(plans: Sequence[GroupPlan], source: PruneSource) -> str:
    """Why nothing goes: for the first layers, and what may lie in the sizes that were taken."""
    named = [f"'{plan.group.name}': {plan.reason}" for plan in plans[:3]] or [_NO_LAYER]
    return "; ".join([*named, *(source.notes or filter(None, [source.remedy]))])


def prune_groups(model: Source, *, input_shapes: Mapping[str, Sequence[int]] | None = None) -> PruneReport:
    """The groups of channels that go together, and why some stay; nothing is pruned.

    Args:
        model: path of an ONNX file, or a ModelProto.
        input_shapes: input -> sizes to take for the free ones.
    """
    whole, base_dir = load_float(model)
    with blaming_illegal_models(whole, base_dir):
        source = prune_source(whole, base_dir, input_shapes=input_shapes)
        prunable = open_prunable(source.proto, base_dir, source.shapes)
    cost = model_cost(prunable.model, source.shapes)
    groups = tuple(_summary(group, 0, group.reason, source.shapes) for group in prunable.groups)
    notes = (*source.notes, *_loop_notes(prunable))
    return PruneReport(groups, cost, cost, notes, sizes=source.sizes)


def _loop_notes(prunable: Prunable) -> tuple[str, ...]:
    layers = layers_in_loops(prunable.model)
    if not layers:
        return ()
    name, loop = next(iter(layers.items()))
    more = f" and {len(layers) - 1} more" if len(layers) > 1 else ""
    return (f"layers in bodies are not pruned: '{name}' in that of {loop}{more}",)


def _summary(group: Group, removed: int, reason: str, shapes: Shapes, *, aligned: bool = False) -> GroupSummary:
    names = tuple(str(producer.node.name) for producer in group.producers)
    nodes = {id(node): node for node in (*(one.node for one in group.producers), *(one.node for one in group.readers))}
    own = nodes_cost(nodes.values(), shapes)
    return GroupSummary(
        names,
        int(group.units.size),
        removed,
        reason,
        group.approximate,
        bool(group.is_free.any()),
        own.parameters,
        own.multiply_adds,
        aligned,
    )
