"""Which channels go when so much of the model's cost has to: each group's losses against what it saves."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from amct_onnx.analyse.allocation import Offer, allocate_share
from amct_onnx.analyse.cost import Shapes, layer_multiply_adds, weight_multiply_adds
from amct_onnx.analyse.pruning.counts import ALIGNMENT
from amct_onnx.analyse.pruning.elimination import Elimination
from amct_onnx.analyse.pruning.options import SearchGoal
from amct_onnx.analyse.pruning.plan import GroupPlan, channels_per_unit
from amct_onnx.graph.op_table import spec_of
from amct_onnx.graph.parts import Node
from amct_onnx.passes.pruning.groups import Group
from amct_onnx.passes.pruning.labels import LabelArray
from amct_onnx.passes.pruning.walk import Flow
from amct_onnx.rewrite.pruning import Prunable

Losses = NDArray[np.float64]
Estimate: TypeAlias = Callable[[Group, int], Elimination | None]
"""In which order so many units of every block go, and what that loses; None where nothing tells."""
Measure: TypeAlias = Callable[[LabelArray], float]
"""What the model's results lose without some units."""

_STEPS = 24
"""In how many steps a group's channels are offered."""
_PROBES = (0.15, 0.4, 1.0)
"""Shares of the most that may go of a group at which the loss is measured; between them it follows the estimate."""


@dataclass(frozen=True)
class _Offered:
    """What one group can give up.

    Attributes:
        group: the group.
        found: the order in which its units go.
        counts: how many units of each block may go: the steps.
        offer: what each step loses and saves.
    """

    group: Group
    found: Elimination
    counts: Sequence[int]
    offer: Offer

    def units(self, step: int) -> LabelArray:
        """What goes in the first steps."""
        return _units(self.group, self.found, self.counts[step - 1])


def search_plans(
    prunable: Prunable,
    shapes: Shapes,
    goal: SearchGoal,
    estimate: Estimate,
    measure: Measure | None,
    decided: Mapping[str, GroupPlan],
) -> list[GroupPlan]:
    """Plans of all groups that together save a share of the multiply-adds.

    Args:
        prunable: the model, followed.
        shapes: sizes of its tensors.
        goal: what is wanted.
        estimate: what each group loses.
        measure: what its losses are scaled by; None where they are to be taken as they are.
        decided: groups that are not searched -> their plans.

    Raises:
        OutOfReachError: so much cannot be saved.
    """
    counts = {
        group.name: removal_counts(group, channels_per_unit(group), goal.alignment, goal.most)
        for group in prunable.groups
        if group.name not in decided
    }
    offered = {
        group.name: found
        for group in prunable.groups
        if counts.get(group.name)
        and (found := _offered(prunable.flow, group, shapes, counts[group.name], estimate, measure))
    }
    steps = _steps_for(prunable, shapes, offered, goal.saving, [plan.removed for plan in decided.values()])
    plans: list[GroupPlan] = []
    for group in prunable.groups:
        if step := steps.get(group.name, 0):
            is_aligned = goal.alignment % ALIGNMENT == 0
            plans.append(GroupPlan(group, offered[group.name].units(step), aligned=is_aligned))
        elif group.name in decided:
            plans.append(decided[group.name])
        else:
            reason = _why_whole(group, goal, counts[group.name], is_offered=group.name in offered)
            plans.append(GroupPlan(group, np.zeros(0, np.int64), reason))
    return plans


def _offered(
    flow: Flow, group: Group, shapes: Shapes, counts: Sequence[int], estimate: Estimate, measure: Measure | None
) -> _Offered | None:
    found = estimate(group, counts[-1])
    if found is None:
        return None
    losses = _by_block(found, group)
    if measure is not None:
        probes = sorted({counts[round(share * (len(counts) - 1))] for share in _PROBES})
        losses = scaled_to(losses, probes, [measure(_units(group, found, count)) for count in probes])
    taken = np.array(counts)
    return _Offered(group, found, counts, Offer(losses[taken - 1], taken * _saved_by_one(flow, group, shapes)))


def _steps_for(
    prunable: Prunable, shapes: Shapes, offered: Mapping[str, _Offered], saving: float, decided: Sequence[LabelArray]
) -> dict[str, int]:
    """Steps of each group that save enough; groups share layers."""
    total = sum(layer_multiply_adds(node, shapes) for node in prunable.model.graph.nodes)

    def saved_by(steps: Mapping[str, int]) -> float:
        searched = [offered[name].units(step) for name, step in steps.items() if step]
        return _saved(prunable, shapes, [*decided, *searched])

    return allocate_share({name: found.offer for name, found in offered.items()}, saving, total, saved_by)


def _saved(prunable: Prunable, shapes: Shapes, units: Sequence[LabelArray]) -> float:
    """Multiply-adds that go with some units: of each layer's results, and of what it reads."""
    labels = prunable.flow.labels
    gone = np.unique(labels.find(np.concatenate([np.zeros(0, np.int64), *units])))
    whole = {str(node.name): weight_multiply_adds(node, shapes) for node in prunable.model.graph.nodes}
    kept = {name: dict.fromkeys(weights, 1.0) for name, weights in whole.items()}
    for node, own, weight in _sides(prunable.flow):
        share = 1.0 - float(np.isin(labels.find(own), gone).mean())
        shares = kept.get(str(node.name), {})
        for index in shares.keys() if weight is None else shares.keys() & {weight}:
            shares[index] *= share
    return sum((1 - kept[name][index]) * count for name, weights in whole.items() for index, count in weights.items())


def _sides(of: Flow | Group) -> Iterator[tuple[Node, LabelArray, int | None]]:
    """Layers, channels that they make or read, and which of their weights have them; None for all.

    The weight R of a recurrent layer has a layer's own channels on both sides, W on one.
    """
    yield from ((one.node, one.labels, None) for one in of.producers)
    for reader in (*of.readers, *of.recurrences):
        yield reader.node, reader.labels, reader.weight if spec_of(reader.node).gates else None


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


def removal_counts(group: Group, width: int, alignment: int, most: float) -> list[int]:
    """How many units of each block may go, so that a multiple of `alignment` channels stays; a few of many choices.

    Args:
        group: the group.
        width: channels of a layer in one unit.
        alignment: of what a multiple stays.
        most: share of the units that may go at most; one of each block stays.
    """
    size = group.units.size // group.block_count
    free = [int((group.is_free & (group.blocks == block)).sum()) for block in range(group.block_count)]
    limit = min(*free, int(most * size + 1e-6), size - 1)
    fitting = [
        count
        for count in range(1, limit + 1)
        if (group.units.size - count * group.block_count) * width % alignment == 0
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
    saved = 0.0
    for node, labels, weight in _sides(group):
        weights = weight_multiply_adds(node, shapes)
        count = sum(weights.values()) if weight is None else weights.get(weight, 0)
        own = np.isin(flow.labels.find(labels), group.units).sum()
        saved += count * own / labels.size / group.units.size
    return saved * group.block_count


def _why_whole(group: Group, goal: SearchGoal, counts: Sequence[int], *, is_offered: bool) -> str:
    if not group.is_free.any():
        return group.reason
    if is_offered:
        return "other layers give up more for less loss"
    if counts:
        return "no layer that reads its channels can be fitted"
    channels = group.units.size * channels_per_unit(group)
    multiple = f"a multiple of {goal.alignment} stays, and " if goal.alignment > 1 else ""
    return f"none of its {channels} channels goes: {multiple}at most {goal.most:.0%} may"
