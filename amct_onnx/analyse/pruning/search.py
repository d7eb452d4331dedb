"""Which channels go when so much of the model's cost has to: each group's losses, measured, against what it saves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from onnx import ModelProto

from amct_onnx.analyse.feeds import Feed
from amct_onnx.analyse.pruning.allocation import Offer, allocate
from amct_onnx.analyse.pruning.cost import Shapes, layer_multiply_adds
from amct_onnx.analyse.pruning.elimination import Elimination, eliminate
from amct_onnx.analyse.pruning.plan import GroupPlan, channels_per_unit
from amct_onnx.analyse.pruning.reader_views import GroupMoments, group_views
from amct_onnx.analyse.pruning.sensitivity import Sensitivity
from amct_onnx.passes.pruning.groups import Group
from amct_onnx.passes.pruning.labels import LabelArray
from amct_onnx.passes.pruning.walk import Flow
from amct_onnx.rewrite.pruning import Prunable

Losses = NDArray[np.float64]

MOST_OF_GROUP = 0.75
"""Share of a group's channels that may go at most."""
_STEPS = 24
"""In how many steps a group's channels are offered."""
_RAISES = tuple(1.0 + 0.04 * step for step in range(26))
"""Factors by which the target is raised until the layers together save enough."""
_PROBES = (0.15, 0.4, 1.0)
"""Shares of the most that may go of a group at which the loss is measured; between them it follows the estimate."""


def search_plans(
    prunable: Prunable,
    proto: ModelProto,
    base_dir: Path | None,
    shapes: Shapes,
    moments: GroupMoments,
    feeds: Sequence[Feed],
    saving: float,
    *,
    alignment: int,
) -> list[GroupPlan]:
    """Plans of all groups that together save a share of the multiply-adds.

    Args:
        prunable: the model, followed.
        proto, base_dir: its source.
        shapes: sizes of its tensors.
        moments: of what layers read and give.
        feeds: feeds on which sensitivity is measured.
        saving: share of the multiply-adds that goes, above 0 and below 1.
        alignment: a multiple of which every layer keeps.
    """
    measured = Sensitivity(proto, base_dir, shapes, feeds)
    found: dict[str, Elimination] = {}
    offers: dict[str, Offer] = {}
    counts: dict[str, list[int]] = {}
    for group in prunable.groups:
        views = group_views(prunable.flow, group, moments) if group.is_free.any() else []
        counts[group.name] = own = removal_counts(group, channels_per_unit(group), alignment) if views else []
        if not own:
            continue
        found[group.name] = elimination = eliminate(group, views, own[-1])
        probes = sorted({own[round(share * (len(own) - 1))] for share in _PROBES})
        lost = [measured.of(_units(group, elimination, count), moments) for count in probes]
        losses = scaled_to(_by_block(elimination, group), probes, lost)
        taken = np.array(own)
        offers[group.name] = Offer(losses[taken - 1], taken * _saved_by_one(prunable.flow, group, shapes))
    steps = _steps_for(prunable, shapes, offers, found, counts, saving)
    plans: list[GroupPlan] = []
    for group in prunable.groups:
        step = steps.get(group.name, 0)
        if step:
            removed = _units(group, found[group.name], counts[group.name][step - 1])
            plans.append(GroupPlan(group, removed))
        else:
            plans.append(GroupPlan(group, np.zeros(0, np.int64), _why_whole(group, counts[group.name], alignment)))
    return plans


def _steps_for(
    prunable: Prunable,
    shapes: Shapes,
    offers: Mapping[str, Offer],
    found: Mapping[str, Elimination],
    counts: Mapping[str, Sequence[int]],
    saving: float,
) -> dict[str, int]:
    """Steps of each group that save enough; what is offered is raised until they do, since groups share layers."""
    total = sum(layer_multiply_adds(node, shapes) for node in prunable.model.graph.nodes)
    groups = {group.name: group for group in prunable.groups}
    steps: dict[str, int] = {}
    for factor in _RAISES:
        steps = allocate(offers, factor * saving * total)
        taken = {name: counts[name][step - 1] for name, step in steps.items() if step}
        units = [_units(groups[name], found[name], count) for name, count in taken.items()]
        if units and _saved(prunable, shapes, np.concatenate(units)) >= saving * total:
            break
    return steps


def _saved(prunable: Prunable, shapes: Shapes, units: LabelArray) -> float:
    """Multiply-adds that go with some units: of each layer's results, and of what it reads."""
    labels = prunable.flow.labels
    gone = np.unique(labels.find(units))
    sides = [(one.node, one.labels) for one in prunable.flow.producers]
    sides += [(other.node, other.labels) for other in prunable.flow.readers]
    kept: dict[str, float] = {}
    for node, own in sides:
        share = 1.0 - float(np.isin(labels.find(own), gone).mean())
        kept[str(node.name)] = kept.get(str(node.name), 1.0) * share
    nodes = [node for node in prunable.model.graph.nodes if str(node.name) in kept]
    return sum((1 - kept[str(node.name)]) * layer_multiply_adds(node, shapes) for node in nodes)


def scaled_to(estimate: Losses, counts: Sequence[int], measured: Sequence[float]) -> Losses:
    """An estimated loss for every count, scaled so that it passes through what was measured at some counts.

    Args:
        estimate: loss when one, two, ... are gone; it grows.
        counts: where the loss was measured, growing.
        measured: the loss there.
    """
    result = np.zeros_like(estimate)
    begin, before = 0, 0.0
    for count, value in zip(counts, measured, strict=True):
        value = max(value, before)
        base = estimate[begin - 1] if begin else 0.0
        part = estimate[begin:count] - base
        share = part / part[-1] if part[-1] > 0 else np.arange(1, len(part) + 1) / len(part)
        result[begin:count] = before + share * (value - before)
        begin, before = count, value
    result[begin:] = before
    return result


def removal_counts(group: Group, width: int, alignment: int) -> list[int]:
    """How many units of each block may go, so that a multiple of `alignment` channels stays; a few of many choices.

    Args:
        group: the group.
        width: channels of a layer in one unit.
        alignment: of what a multiple stays.
    """
    blocks = [int((group.is_free & (group.blocks == block)).sum()) for block in range(group.block_count)]
    most = min(*blocks, int(MOST_OF_GROUP * group.units.size / group.block_count)) if blocks else 0
    fitting = [
        count for count in range(1, most + 1) if (group.units.size - count * group.block_count) * width % alignment == 0
    ]
    stride = -(-len(fitting) // _STEPS) if fitting else 1
    return fitting[::-1][::stride][::-1]


def _by_block(found: Elimination, group: Group) -> Losses:
    """Loss when so many units of every block are gone."""
    return np.asarray(found.costs[group.block_count - 1 :: group.block_count])


def _units(group: Group, found: Elimination, per_block: int) -> LabelArray:
    return group.units[np.sort(found.order[: per_block * group.block_count])]


def _saved_by_one(flow: Flow, group: Group, shapes: Shapes) -> float:
    """Multiply-adds that go with one unit of each block."""
    members = [(one.node, one.labels) for one in group.producers]
    members += [(other.node, other.labels) for other in group.readers]
    saved = 0.0
    for node, labels in members:
        own = np.isin(flow.labels.find(labels), group.units).sum()
        saved += layer_multiply_adds(node, shapes) * own / labels.size / group.units.size
    return saved * group.block_count


def _why_whole(group: Group, counts: Sequence[int], alignment: int) -> str:
    if not group.is_free.any():
        return group.reason
    if not counts:
        return f"no layer that reads its channels can be fitted, or no smaller multiple of {alignment} channels is left"
    return "other layers give up more for less loss"
