"""Scores of every group's units, the way that is asked for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from onnx import ModelProto

from amct_onnx.analyse.pruning.elimination import ReaderView, eliminate
from amct_onnx.analyse.pruning.importance import Scores, l2_scores
from amct_onnx.analyse.pruning.moments import Moments
from amct_onnx.analyse.pruning.options import Importance, PruneOptions
from amct_onnx.analyse.pruning.plan import units_removed, wanted_pruning
from amct_onnx.analyse.pruning.reader_views import group_views, reader_moments
from amct_onnx.analyse.pruning.refit import RIDGE
from amct_onnx.analyse.walk import Progress
from amct_onnx.passes.pruning.groups import Group
from amct_onnx.rewrite import prepare
from amct_onnx.rewrite.pruning import Prunable


def channel_scores(
    prunable: Prunable,
    proto: ModelProto,
    base_dir: Path | None,
    options: PruneOptions,
    data: Any,
    *,
    feeds: int | None = None,
    progress: Progress | None = None,
) -> dict[str, Scores]:
    """Score of each unit of the groups that may be pruned, by group; the lowest go first.

    Args:
        prunable: the model, followed.
        proto, base_dir: its source.
        options: how channels are ranked, and how many go.
        data: calibration feeds; not needed for norms of weights.
        feeds: how many of them to use; None for all.
        progress: wraps the iterator of feeds.
    """
    groups = [group for group in prunable.groups if group.is_free.any()]
    fused = prepare(proto, base_dir).model
    by_weight = {group.name: l2_scores(prunable.flow, group, fused) for group in groups}
    if options.importance is Importance.L2:
        return by_weight
    readers = {id(reader.node): reader.node for group in groups for reader in group.readers}
    moments = reader_moments(readers.values(), proto, base_dir, data, feeds=feeds, progress=progress)
    return {group.name: _scores(prunable, group, moments, options, by_weight[group.name]) for group in groups}


def _scores(
    prunable: Prunable,
    group: Group,
    moments: Mapping[str, Sequence[Moments]],
    options: PruneOptions,
    by_weight: Scores,
) -> Scores:
    views = group_views(prunable.flow, group, moments)
    if not views:
        # Nothing that reads the channels can be looked at: their weights have to do.
        return by_weight
    if options.importance is Importance.ENERGY:
        return energy(views)
    wanted = wanted_pruning(group, options)
    count = 0 if wanted is None else units_removed(group, wanted)[0]
    scores = np.full(group.units.size, np.inf)
    order = eliminate(group, views, count, ridge=RIDGE).order
    scores[order] = np.arange(len(order))
    return scores


def energy(views: Sequence[ReaderView]) -> Scores:
    """Variance of each unit times its readers' squared weights, as a share of the variance of what they give out."""
    total = np.zeros(len(views[0].columns))
    for view in views:
        variance = float(np.sum((view.weight @ view.covariance) * view.weight))
        per_column = np.diag(view.covariance) * np.square(view.weight).sum(axis=0)
        own = np.array([per_column[columns].sum() for columns in view.columns])
        total += own / variance if variance > 0 else 0.0
    return total
