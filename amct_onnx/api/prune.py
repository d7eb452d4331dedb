"""Prune the channels of a model."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from onnx import ModelProto

from amct_onnx.analyse.feed_files import find_feeds
from amct_onnx.analyse.feeds import walks_once
from amct_onnx.analyse.planner import check_names
from amct_onnx.analyse.pruning.configurable import prune_options
from amct_onnx.analyse.pruning.cost import Shapes, layer_cost, model_cost
from amct_onnx.analyse.pruning.options import Importance, LayerPruning, PruneOptions
from amct_onnx.analyse.pruning.plan import GroupPlan, plan_groups
from amct_onnx.analyse.pruning.refit import layers_to_refit, refit
from amct_onnx.analyse.pruning.scores import channel_scores
from amct_onnx.analyse.pruning.shapes import first_feed, sample_feed, tensor_shapes
from amct_onnx.analyse.walk import Progress
from amct_onnx.api.assemble import plain_record
from amct_onnx.api.belonging import check_belongs
from amct_onnx.api.configured import refuse_beside_config
from amct_onnx.api.prune_config import PruneConfigSource, configure_pruning, pruning_notes
from amct_onnx.api.prune_result import GroupSummary, PruneReport, PruneResult
from amct_onnx.api.source import Source, blaming_illegal_models, load_source, refuse_compressed, source_files
from amct_onnx.errors import DataError, NothingToCompressError, RecordError, UsageError
from amct_onnx.graph import build, digest, import_model, name_nodes
from amct_onnx.passes.pruning.groups import Group
from amct_onnx.record import LoadedRecord, Record, RecordHeader, WeightState, load_record
from amct_onnx.rewrite.pruning import (
    kept_results,
    lost_inputs,
    open_prunable,
    prune_model,
    prune_records,
    units_of_records,
)


def prune(
    model: Source,
    data: Any = None,
    *,
    ratio: float | None = None,
    ascend_optimized: bool = False,
    skip: Collection[str] = (),
    importance: Importance | str | None = None,
    recover: bool | None = None,
    config: PruneConfigSource | None = None,
    input_shapes: Mapping[str, Sequence[int]] | None = None,
    progress: Progress | None = None,
) -> PruneResult:
    """Take the least important channels out of a model.

    Args:
        model: path of an ONNX file, or a ModelProto (not changed).
        data: calibration feeds as for :func:`amct_onnx.quantize`, which can be walked several times; without them
            channels are ranked by weights, and nothing is recovered.
        ratio: share of each layer's output channels that goes, above 0 and below 1.
        ascend_optimized: leave a multiple of 16 channels.
        skip: layers whose output channels all stay.
        importance: how channels are ranked: ``l2`` (without data the default), ``energy`` or ``reconstruction`` (with
            data the default).
        recover: fit the layers that lost inputs to the float model's results again; by default with data.
        config: path of an AMCT retrain config, or one read by :mod:`amct_onnx.config.retrain`; takes the place of
            `ratio`, `ascend_optimized` and `skip`.
        input_shapes: input -> sizes to take for the free ones while following channels.
        progress: wraps the iterator of feeds of every walk over the data.

    Raises:
        AmctError: see :mod:`amct_onnx.errors`.
    """
    names = (skip,) if isinstance(skip, str) else tuple(skip)
    kind = _importance(importance, data)
    if config is None:
        options = _options(ratio, ascend_optimized, names, kind)
    else:
        given_too = {"ratio": ratio is not None, "ascend_optimized": ascend_optimized, "skip": names}
        refuse_beside_config("config", given_too)
    given = _given(data, recover, progress)
    proto, base_dir = load_source(model)
    refuse_compressed(proto)
    with blaming_illegal_models(proto, base_dir):
        _check_names(proto, base_dir, names)
        feed = first_feed(proto, base_dir, given.data) or sample_feed(proto, base_dir, input_shapes or {})
        shapes = tensor_shapes(proto, base_dir, feed)
        notes: tuple[str, ...] = ()
        if config is not None:
            resolved = configure_pruning(proto, base_dir, shapes, config)
            options, notes = prune_options(resolved, kind), pruning_notes(resolved)
        result = _pruned(proto, base_dir, shapes, options, given)
    report = replace(result.report, notes=(*result.report.notes, *notes))
    read = [Path(config)] if isinstance(config, str | os.PathLike) else []
    return replace(result, report=report, source=(*source_files(model, proto, base_dir), *read))


def _options(ratio: float | None, ascend_optimized: bool, skip: Collection[str], kind: Importance) -> PruneOptions:
    """The choices of arguments."""
    if ratio is None or not 0 < ratio < 1:
        raise UsageError(f"ratio is {ratio}; give the share of channels that goes, above 0 and below 1, or a config")
    reasons = dict.fromkeys(skip, "it is skipped on request")
    return PruneOptions(default=LayerPruning(ratio, ascend_optimized), skip=reasons, importance=kind)


def _importance(wanted: Importance | str | None, data: Any) -> Importance:
    if wanted is None:
        return Importance.L2 if data is None else Importance.RECONSTRUCTION
    try:
        chosen = Importance(wanted)
    except ValueError:
        known = ", ".join(kind.value for kind in Importance)
        raise UsageError(f"importance is '{wanted}'; choose from {known}") from None
    if chosen is not Importance.L2 and data is None:
        raise UsageError(f"importance '{chosen.value}' is taken from data; give some, or choose l2")
    return chosen


def _given(data: Any, recover: bool | None, progress: Progress | None) -> _Data:
    if recover and data is None:
        raise UsageError("recovering fits layers on data; give some, or leave recover out")
    if isinstance(data, str | os.PathLike):
        data = find_feeds(Path(data))
    if walks_once(data):
        raise DataError("pruning walks over the data several times, and a generator can be walked once; give a list")
    return _Data(data, None, data is not None if recover is None else recover, progress)


def _check_names(proto: ModelProto, base_dir: Path | None, names: Collection[str]) -> None:
    model = import_model(proto, base_dir)
    name_nodes(model)
    check_names(model, names, "layer to skip")


def restore_pruned(
    model: Source,
    record: str | os.PathLike[str] | Record | LoadedRecord,
    *,
    structure_only: bool = False,
    input_shapes: Mapping[str, Sequence[int]] | None = None,
) -> PruneResult:
    """Take out of a model the channels that a record names.

    Args:
        model: the model the record was made for; with `structure_only` any of the same structure.
        record: path of the record file, or a record.
        structure_only: take the record for a model with other weights, too.
        input_shapes: input -> sizes to take for the free ones while following channels.

    Raises:
        RecordError: the record cannot be read, breaks a rule, or does not fit the model.
    """
    loaded = record if isinstance(record, Record | LoadedRecord) else load_record(record)
    plain = plain_record(loaded)
    source = loaded.source if isinstance(loaded, LoadedRecord) else "record"
    if not any(entry.producers for entry in plain.prune):
        raise RecordError(f"{source}: it holds no prune_record with producers, so there is nothing to prune")
    proto, base_dir = load_source(model)
    refuse_compressed(proto)
    notes = () if structure_only else tuple(check_belongs(loaded, proto, base_dir))
    with blaming_illegal_models(proto, base_dir):
        feed = sample_feed(proto, base_dir, input_shapes or {})
        shapes = tensor_shapes(proto, base_dir, feed)
        prunable = open_prunable(proto, base_dir, shapes)
        units = units_of_records(prunable, plain.prune, source)
        before = model_cost(prunable.model, shapes)
        gone = set(units.tolist())
        summaries = tuple(
            _summary(group, sum(unit in gone for unit in group.units.tolist()), "", shapes) for group in prunable.groups
        )
        built = prune_model(prunable, units)
    report = PruneReport(summaries, before, model_cost(prunable.model, shapes), notes)
    return PruneResult(plain, built, report, source_files(model, proto, base_dir))


def _pruned(
    proto: ModelProto, base_dir: Path | None, shapes: Shapes, options: PruneOptions, given: _Data
) -> PruneResult:
    prunable = open_prunable(proto, base_dir, shapes, options.skip)
    scores = channel_scores(prunable, proto, base_dir, options, given.data, feeds=given.feeds, progress=given.progress)
    plans = plan_groups(prunable.groups, scores, options)
    removed = {plan.group.name: plan.removed for plan in plans if plan.removed.size}
    if not removed:
        raise NothingToCompressError("no channel of the model can be pruned; " + _reasons(plans))
    before = model_cost(prunable.model, shapes)
    summaries = tuple(_summary(plan.group, int(plan.removed.size), plan.reason, shapes) for plan in plans)
    records = prune_records(prunable, removed)
    units = np.concatenate(list(removed.values()))
    lost = lost_inputs(prunable, units) if given.recover else ()
    built = prune_model(prunable, units)
    fitted: tuple[str, ...] = ()
    if lost:
        layers = layers_to_refit(prunable.model, lost, kept_results(prunable, units))
        fitted = refit(prunable.model, layers, proto, base_dir, given.data, feeds=given.feeds, progress=given.progress)
        built = build(prunable.model)
    state = WeightState.MODIFIED if fitted else WeightState.RECOMPUTABLE
    record = Record(prune=records, header=RecordHeader(source_sha256=digest(proto, base_dir), weights=state))
    report = PruneReport(summaries, before, model_cost(prunable.model, shapes), fitted=fitted)
    return PruneResult(record, built, report)


@dataclass(frozen=True)
class _Data:
    """Calibration data and what it is used for; without any, nothing is."""

    data: Any = None
    feeds: int | None = None
    recover: bool = False
    progress: Progress | None = None


def _reasons(plans: Sequence[GroupPlan]) -> str:
    return "; ".join(f"'{plan.group.name}': {plan.reason}" for plan in plans[:3]) or "it has no Conv, Gemm or MatMul"


def prune_groups(model: Source, *, input_shapes: Mapping[str, Sequence[int]] | None = None) -> PruneReport:
    """The groups of channels that go together, and why some stay; nothing is pruned.

    Args:
        model: path of an ONNX file, or a ModelProto.
        input_shapes: input -> sizes to take for the free ones.
    """
    proto, base_dir = load_source(model)
    with blaming_illegal_models(proto, base_dir):
        shapes = tensor_shapes(proto, base_dir, sample_feed(proto, base_dir, input_shapes or {}))
        prunable = open_prunable(proto, base_dir, shapes)
    cost = model_cost(prunable.model, shapes)
    return PruneReport(tuple(_summary(group, 0, group.reason, shapes) for group in prunable.groups), cost, cost)


def _summary(group: Group, removed: int, reason: str, shapes: Shapes) -> GroupSummary:
    names = tuple(str(producer.node.name) for producer in group.producers)
    nodes = {id(node): node for node in (*(one.node for one in group.producers), *(one.node for one in group.readers))}
    own = [layer_cost(node, shapes) for node in nodes.values()]
    return GroupSummary(
        names,
        int(group.units.size),
        removed,
        reason,
        group.approximate,
        bool(group.is_free.any()),
        sum(cost.parameters for cost in own),
        sum(cost.multiply_adds for cost in own),
    )
