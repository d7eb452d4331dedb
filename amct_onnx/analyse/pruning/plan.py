"""Which channels go: a number for every group, and the least important of each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from amct_onnx.analyse.pruning.counts import ALIGNMENT, channels_kept
from amct_onnx.analyse.pruning.options import LayerPruning, PruneOptions
from amct_onnx.passes.pruning.groups import Group
from amct_onnx.passes.pruning.labels import LabelArray

Order: TypeAlias = Callable[[Group, int], NDArray[np.int64]]
"""Indexes of the units that go when so many of every block do."""


@dataclass(frozen=True, eq=False)
class GroupPlan:
    """What happens to one group.

    Attributes:
        group: the group.
        removed: the units that go.
        reason: why none goes, or fewer than asked for; empty otherwise.
        aligned: whether, as was asked for, a multiple of 16 channels of each layer stays.
    """

    group: Group
    removed: LabelArray
    reason: str = ""
    aligned: bool = False


def wanted_pruning(group: Group, options: PruneOptions) -> LayerPruning | None:
    """What is asked of a group: its layers' smallest ratio, aligned if one of them is; None when one stays whole."""
    choices = [options.of(str(producer.node.name)) for producer in group.producers]
    known = [choice for choice in choices if choice is not None]
    if not known or len(known) < len(choices):
        return None
    return LayerPruning(min(choice.ratio for choice in known), any(choice.ascend_optimized for choice in known))


def units_removed(group: Group, wanted: LayerPruning) -> tuple[int, str]:
    """How many units go of each block, and why fewer than asked for."""
    width = channels_per_unit(group)
    kept = channels_kept(
        group.units.size * width,
        wanted.ratio,
        aligned=wanted.ascend_optimized,
        groups=group.block_count * width,
    )
    asked = (group.units.size - kept // width) // group.block_count
    sizes = [int((group.is_free & (group.blocks == block)).sum()) for block in range(group.block_count)]
    most = min(*sizes, group.units.size // group.block_count - 1) if sizes else 0
    if asked > most:
        return max(0, most), group.reason or "one channel of each block stays"
    if asked == 0:
        return 0, _nothing_goes(group, wanted, width)
    return asked, ""


def channels_per_unit(group: Group) -> int:
    """How many channels of a layer go with one unit."""
    return max(1, group.producers[0].labels.size // max(1, group.units.size))


def _nothing_goes(group: Group, wanted: LayerPruning, width: int) -> str:
    channels = group.units.size * width
    if wanted.ascend_optimized:
        return f"a multiple of {ALIGNMENT} stays for Ascend devices, and of {channels} channels that is all"
    blocks, each = (f" in {group.block_count} equal blocks", " of each") if group.block_count > 1 else ("", "")
    return f"{wanted.ratio:g} of {channels} channels{blocks} is less than one{each}"


def plan_groups(groups: Sequence[Group], order: Order, options: PruneOptions) -> list[GroupPlan]:
    """The plan of every group.

    Args:
        groups: the groups.
        order: which units go.
        options: how much of each layer goes.
    """
    return [_plan(group, order, options) for group in groups]


def _plan(group: Group, order: Order, options: PruneOptions) -> GroupPlan:
    nothing = np.zeros(0, np.int64)
    if not group.is_free.any():
        return GroupPlan(group, nothing, group.reason)
    if not group.readers:
        return GroupPlan(group, nothing, "no layer reads its channels")
    wanted = wanted_pruning(group, options)
    if wanted is None:
        return GroupPlan(group, nothing, "the config does not prune it")
    count, reason = units_removed(group, wanted)
    if count == 0:
        return GroupPlan(group, nothing, reason)
    removed = group.units[np.sort(order(group, count))]
    kept = (group.units.size - removed.size) * channels_per_unit(group)
    return GroupPlan(group, removed, reason, wanted.ascend_optimized and kept % ALIGNMENT == 0)
