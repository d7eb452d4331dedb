"""Scores of every group's units, the way that is asked for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from onnx import ModelProto

from amct_onnx.analyse.pruning.elimination import Elimination, ReaderView, eliminate
from amct_onnx.analyse.pruning.importance import Scores, l2_scores
from amct_onnx.analyse.pruning.options import Importance, PruneData, PruneOptions
from amct_onnx.analyse.pruning.plan import units_removed, wanted_pruning
from amct_onnx.analyse.pruning.reader_views import GroupMoments, group_views, reader_moments
from amct_onnx.graph.op_table import spec_of
from amct_onnx.passes.pruning.groups import Group
from amct_onnx.rewrite import prepare
from amct_onnx.rewrite.pruning import Prunable


def weight_scores(prunable: Prunable, proto: ModelProto, base_dir: Path | None) -> dict[str, Scores]:
    """Score of each unit of the groups that may be pruned, by group, from weights; the lowest go first."""
    fused = prepare(proto, base_dir).model
    return {group.name: l2_scores(prunable.flow, group, fused) for group in prunable.groups if group.is_free.any()}


def group_moments(prunable: Prunable, proto: ModelProto, base_dir: Path | None, given: PruneData) -> GroupMoments:
    """Moments of what the readers of every group that may be pruned are fed in the float model."""
    groups = [group for group in prunable.groups if group.is_free.any()]
    # What runs in a branch is not seen from outside.
    seen = {id(node) for node in prunable.model.graph.nodes}
    readers = [reader for group in groups for reader in (*group.readers, *group.recurrences) if id(reader.node) in seen]
    return reader_moments(readers, proto, base_dir, given)


def data_scores(
    prunable: Prunable, moments: GroupMoments, options: PruneOptions, by_weight: Mapping[str, Scores]
) -> dict[str, Scores]:
    """The same from data, the way the options ask for; from weights where no reader can be looked at."""
    scores = dict(by_weight)
    for group in prunable.groups:
        views = group_views(prunable.flow, group, moments) if group.name in scores else []
        # Gates are not fitted again, so what they lose is what they were fed.
        has_gates = bool(group.recurrences) or any(spec_of(reader.node).gates for reader in group.readers)
        if views and (has_gates or options.importance is Importance.ENERGY):
            scores[group.name] = energy(views)
        elif views:
            wanted = wanted_pruning(group, options)
            count = 0 if wanted is None else units_removed(group, wanted)[0]
            scores[group.name] = elimination_scores(group, eliminate(group, views, count))
    return scores


def elimination_scores(group: Group, found: Elimination) -> Scores:
    """Scores that let units go in the order of an elimination; those that stay are never reached."""
    scores = np.full(group.units.size, np.inf)
    scores[found.order] = np.arange(len(found.order))
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
