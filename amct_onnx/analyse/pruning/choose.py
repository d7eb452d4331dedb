"""What goes of every group of a model, the way the options ask for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from onnx import ModelProto

from amct_onnx.analyse.cost import Shapes
from amct_onnx.analyse.feeds import Feed
from amct_onnx.analyse.fitting.data import FittingData
from amct_onnx.analyse.fitting.evidence import Evidence, check_finite
from amct_onnx.analyse.pruning.channel_sensitivity import ChannelSensitivity
from amct_onnx.analyse.pruning.options import PruneOptions, SearchGoal
from amct_onnx.analyse.pruning.plan import GroupPlan, plan_groups, wanted_pruning
from amct_onnx.analyse.pruning.ranking import Ranking
from amct_onnx.analyse.pruning.reader_views import ReaderMoments
from amct_onnx.analyse.pruning.search import Measure, search_plans
from amct_onnx.analyse.pruning.sensitivity import Sensitivity
from amct_onnx.analyse.shapes import first_feeds, held_out
from amct_onnx.rewrite.pruning import Prunable


@dataclass(frozen=True)
class Chosen:
    """What goes.

    Attributes:
        plans: of all groups, in graph order.
        note: what a user should know; empty for nothing.
        evidence: what the layers that were looked at were fed, by name.
    """

    plans: list[GroupPlan]
    note: str = ""
    evidence: Mapping[str, Evidence] = field(default_factory=dict)


def choose(
    prunable: Prunable,
    proto: ModelProto,
    base_dir: Path | None,
    shapes: Shapes,
    options: PruneOptions,
    given: FittingData,
) -> Chosen:
    """Choose what goes of every group.

    Args:
        prunable: the model, followed.
        proto, base_dir: its source.
        shapes: sizes of its tensors.
        options: how much goes, and what ranks it.
        given: the data.

    Raises:
        OutOfReachError: so much cannot be saved.
        DataError: no layer is fed anything finite.
    """
    if options.search is not None:
        return _searched(prunable, proto, base_dir, shapes, options, options.search, given)
    moments: ReaderMoments | None = None
    feeds: list[Feed] = []
    if isinstance(options.importance, ChannelSensitivity):
        feeds = first_feeds(proto, base_dir, given.data, given.feeds)
    elif options.importance.needs_data:
        moments = group_moments(prunable, proto, base_dir, given)
    ranking = Ranking(prunable, proto, base_dir, options.importance, moments=moments, feeds=feeds)
    plans = plan_groups(prunable.groups, ranking.order, options)
    return Chosen(plans, ranking.note(), _checked(moments))


def _searched(
    prunable: Prunable,
    proto: ModelProto,
    base_dir: Path | None,
    shapes: Shapes,
    options: PruneOptions,
    goal: SearchGoal,
    given: FittingData,
) -> Chosen:
    """What goes when so much of the whole model has to; what the options name stands."""
    given = replace(given, feeds=goal.feeds)
    measure: Measure | None = None
    moments: ReaderMoments | None = None
    if isinstance(options.importance, ChannelSensitivity):
        feeds = first_feeds(proto, base_dir, given.data, given.feeds)
        ranking = Ranking(prunable, proto, base_dir, options.importance, feeds=feeds)
    else:
        # What is lost is measured on feeds that nothing was fitted to, where there are enough.
        rest, probes = held_out(proto, base_dir, given)
        moments = group_moments(prunable, proto, base_dir, rest)
        ranking = Ranking(prunable, proto, base_dir, options.importance, moments=moments)
        sensitivity = Sensitivity(proto, base_dir, shapes, probes, progress=given.progress)
        measure = partial(sensitivity.of, moments=moments)
    named = [group for group in prunable.groups if wanted_pruning(group, options) is not None]
    decided = {plan.group.name: plan for plan in plan_groups(named, ranking.order, options)}
    plans = search_plans(prunable, shapes, goal, ranking.losses, measure, decided)
    return Chosen(plans, ranking.note(), _checked(moments))


def _checked(moments: ReaderMoments | None) -> Mapping[str, Evidence]:
    """What the layers that were looked at were fed; raises :class:`DataError` where no row of any counts."""
    found = {} if moments is None else moments.evidence
    check_finite(found)
    return found


def group_moments(prunable: Prunable, proto: ModelProto, base_dir: Path | None, given: FittingData) -> ReaderMoments:
    """Moments of what the readers of every group that may be pruned are fed in the float model."""
    groups = [group for group in prunable.groups if group.is_free.any()]
    # What runs in a branch is not seen from outside.
    seen = {id(node) for node in prunable.model.graph.nodes}
    readers = [reader for group in groups for reader in (*group.readers, *group.recurrences) if id(reader.node) in seen]
    return ReaderMoments(readers, proto, base_dir, given)
