"""Groups: the channels that layers share, and what can go of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from amct_onnx.passes.pruning.labels import LabelArray
from amct_onnx.passes.pruning.walk import Balance, Flow, Producer, Reader


@dataclass(frozen=True, eq=False)
class Group:
    """Layers whose channels go together.

    Attributes:
        producers: the layers that make the channels, in graph order.
        units: what can go by itself, as labels in the order in which they first occur: int64 [units].
        is_free: which units may go: bool [units].
        blocks: equal blocks of units, from each of which as many must go: int64 [units].
        readers: nodes on the way of the channels.
        recurrences: its recurrent layers, which read their own channels.
        reason: why not every unit is free; empty when all are.
        approximate: nodes that mix the channels, so that results of those that stay change.
    """

    producers: tuple[Producer, ...]
    units: LabelArray
    is_free: NDArray[np.bool_]
    blocks: NDArray[np.int64]
    readers: tuple[Reader, ...]
    reason: str
    approximate: tuple[str, ...]
    recurrences: tuple[Reader, ...] = ()

    @property
    def name(self) -> str:
        """That of its first layer."""
        return str(self.producers[0].node.name)

    @property
    def block_count(self) -> int:
        """Number of blocks."""
        return int(self.blocks.max(initial=0)) + 1


def find_groups(flow: Flow) -> list[Group]:
    """The groups of a graph, in the order of their first layers."""
    members = _members(flow)
    groups = [_group(flow, producers) for producers in members]
    reading = [reader.labels for reader in flow.readers]
    for group, touching in zip(groups, _touching(flow, groups, reading), strict=True):
        _keep_one_each(flow, group, [flow.readers[index] for index in touching])
    groups = [_group(flow, producers) for producers in members]
    readers = _touching(flow, groups, reading)
    recurrences = _touching(flow, groups, [reader.labels for reader in flow.recurrences])
    mixing = _touching(flow, groups, list(flow.approximate.values()))
    names = list(flow.approximate)
    return [
        replace(
            group,
            readers=tuple(flow.readers[index] for index in readers[place]),
            recurrences=tuple(flow.recurrences[index] for index in recurrences[place]),
            approximate=tuple(names[index] for index in mixing[place]),
        )
        for place, group in enumerate(groups)
    ]


def _keep_one_each(flow: Flow, group: Group, readers: Sequence[Reader]) -> None:
    """A node that makes or reads a part of the units (by a Concat, a Gather) could otherwise be left with none."""
    sides: list[Producer | Reader] = [*group.producers, *readers]
    parts = []
    for one in sides:
        own = np.intersect1d(flow.labels.find(one.labels), group.units)
        if own.size < group.units.size:
            parts.append((own, f"{one.node.op} '{one.node.name}': one channel of each part stays"))
    flow.labels.keep_one_of_each(parts)


def _group(flow: Flow, producers: Sequence[Producer]) -> Group:
    """A group without those that read it."""
    labels = flow.labels
    roots = np.concatenate([labels.find(producer.labels) for producer in producers])
    _, first = np.unique(roots, return_index=True)
    units = roots[np.sort(first)]
    blocks = _blocks(flow, units)
    if blocks is None:
        labels.fix(units, "convolutions in groups ask for blocks of channels that do not agree")
        blocks = np.zeros(units.size, np.int64)
    free = ~labels.is_fixed(units)
    fixed = units[~free]
    reason = labels.reason(int(fixed[0])) if fixed.size else "" if units.size else "it makes no channels"
    return Group(tuple(producers), units, free, blocks, (), reason, ())


def _touching(flow: Flow, groups: Sequence[Group], found: Sequence[LabelArray]) -> list[list[int]]:
    """For each group, which arrays of labels hold a unit of it that may go; such a unit is in one group alone."""
    owner = np.full(len(flow.labels), -1)
    for place, group in enumerate(groups):
        owner[group.units[group.is_free]] = place
    result: list[list[int]] = [[] for _ in groups]
    for index, labels in enumerate(found):
        for place in np.unique(owner[flow.labels.find(labels)]).tolist():
            if place >= 0:
                result[place].append(index)
    return result


def _members(flow: Flow) -> list[list[Producer]]:
    """Producers that share a free unit or blocks that must stay of one size, directly or through others."""
    owner: dict[int, int] = {}
    parent = list(range(len(flow.producers)))

    def root(index: int) -> int:
        while parent[index] != index:
            parent[index] = parent[parent[index]]
            index = parent[index]
        return index

    def join(one: int, other: int) -> None:
        first, second = sorted((root(one), root(other)))
        parent[second] = first

    for index, producer in enumerate(flow.producers):
        roots = np.unique(flow.labels.find(producer.labels))
        for unit in roots[~flow.labels.is_fixed(roots)].tolist():
            join(owner.setdefault(unit, index), index)
    for balance in flow.balances:
        makers = [owner[unit] for unit in np.unique(flow.labels.find(balance.labels)).tolist() if unit in owner]
        for maker in makers[1:]:
            join(makers[0], maker)
    found: dict[int, list[Producer]] = {}
    for index, producer in enumerate(flow.producers):
        found.setdefault(root(index), []).append(producer)
    return list(found.values())


def _blocks(flow: Flow, units: LabelArray) -> NDArray[np.int64] | None:
    """The block of each unit, so that every convolution in groups stays one; None where they contradict."""
    found = [(rows, len(one.labels)) for one in flow.balances if (rows := _rows(flow, one, units)) is not None]
    signatures, heights = [rows for rows, _ in found], [height for _, height in found]
    if any(rows.size == 0 for rows in signatures):
        return None
    if not signatures:
        return np.zeros(units.size, np.int64)
    table = np.stack(signatures, axis=1)
    distinct, blocks = np.unique(table, axis=0, return_inverse=True)
    for column in range(table.shape[1]):
        # A row in which no unit stands could lose none.
        counts = np.bincount(distinct[:, column], minlength=heights[column])
        if len(set(counts.tolist())) > 1:
            return None
    sizes = np.bincount(blocks.reshape(-1))
    return None if len(set(sizes.tolist())) > 1 else np.asarray(blocks.reshape(-1), np.int64)


def _rows(flow: Flow, balance: Balance, units: LabelArray) -> NDArray[np.int64] | None:
    """The row in which each unit stands; None where it stands in all alike or in none, empty where rows differ."""
    roots = flow.labels.find(balance.labels)
    order = np.argsort(units)
    places = np.searchsorted(units, roots, sorter=order).clip(max=units.size - 1)
    is_own = units[order[places]] == roots
    if not is_own.any():
        return None
    counts = np.zeros((units.size, roots.shape[0]), np.int64)
    rows = np.broadcast_to(np.arange(roots.shape[0])[:, None], roots.shape)
    np.add.at(counts, (order[places][is_own], rows[is_own]), 1)
    if (counts == counts[:, :1]).all():
        return None
    is_one = (counts > 0).sum(axis=1) == 1
    times = counts.max(axis=1)
    if not (is_one.all() and (times == times[0]).all()):
        return np.zeros(0, np.int64)
    return np.asarray(counts.argmax(axis=1), np.int64)


def positions(labels: LabelArray, flow: Flow, units: LabelArray) -> NDArray[np.int64]:
    """Where in an axis the channels of some units stand."""
    return np.flatnonzero(np.isin(flow.labels.find(labels), flow.labels.find(units)))


def units_at(producer: Producer, flow: Flow, indices: Sequence[int]) -> LabelArray:
    """The units that hold these channels of a layer."""
    return np.unique(flow.labels.find(producer.labels[np.asarray(indices, np.int64)]))
