"""From a model to its groups of channels, from a choice of them to a prune record and back, and to the pruned model."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from onnx import ModelProto

from amct_onnx.errors import RecordError
from amct_onnx.graph import BuiltModel, Model, build, import_model, name_nodes
from amct_onnx.graph.element_types import settle_types
from amct_onnx.graph.model import Graph, bodies_of, with_bodies
from amct_onnx.graph.op_table import is_standard, resolve_constant, spec_of
from amct_onnx.graph.parts import Node
from amct_onnx.graph.shapes import declared_sizes
from amct_onnx.passes.densify import DensifySparse
from amct_onnx.passes.drop_dead import DropDeadConstants
from amct_onnx.passes.fold_weights import FoldWeights
from amct_onnx.passes.pruning.groups import Group, find_groups, positions, units_at
from amct_onnx.passes.pruning.labels import LabelArray
from amct_onnx.passes.pruning.remove import RemoveChannels
from amct_onnx.passes.pruning.rules import rules_of
from amct_onnx.passes.pruning.walk import Flow, Reader, Rule, Shapes, follow
from amct_onnx.record import PruneNode, PruneRecord


@dataclass(frozen=True, eq=False)
class Prunable:
    """A model whose channels have been followed.

    Attributes:
        model: the graph, named; pruning changes it.
        flow: what was found in it.
        groups: its groups of channels.
    """

    model: Model
    flow: Flow
    groups: tuple[Group, ...]


def open_layers(proto: ModelProto, base_dir: Path | None) -> Model:
    """A model with a name for every node, and constants for weights that are computed from constants.

    Args:
        proto: the model, its functions with layers inlined; not changed.
        base_dir: folder of its external weights.
    """
    model = import_model(proto, base_dir)
    name_nodes(model)
    DensifySparse().run(model)
    FoldWeights().run(model)
    return model


def open_prunable(
    proto: ModelProto, base_dir: Path | None, shapes: Shapes, kept: Mapping[str, str] | None = None
) -> Prunable:
    """Follow the channels of a model.

    Args:
        proto: the model, its functions with layers inlined; not changed.
        base_dir: folder of its external weights.
        shapes: sizes of its tensors at one feed.
        kept: layers whose channels all stay -> why; of those that make none of their own (depthwise convolutions) the
            channels that pass through them.
    """
    model = open_layers(proto, base_dir)
    settle_types(model)
    flow = follow(model, shapes, rules_of(model.opset), declared=declared_sizes(proto, base_dir), kept=kept)
    found = Prunable(model, flow, tuple(find_groups(flow)))
    passed = _kept_by_carriers(found, kept) if kept else {}
    return open_prunable(proto, base_dir, shapes, {**(kept or {}), **passed}) if passed else found


def carriers(prunable: Prunable) -> dict[str, tuple[str, ...]]:
    """Group -> layers that its channels pass through, and that make none of their own, like depthwise convolutions."""
    makers = {id(producer.node) for producer in prunable.flow.producers}
    return {
        group.name: tuple(
            dict.fromkeys(
                str(reader.node.name)
                for reader in group.readers
                if spec_of(reader.node).has_record and id(reader.node) not in makers
            )
        )
        for group in prunable.groups
    }


def _kept_by_carriers(prunable: Prunable, kept: Mapping[str, str]) -> dict[str, str]:
    """Layers whose channels pass through a kept one, and might go -> why they are to stay."""
    names = carriers(prunable)
    return {
        str(producer.node.name): kept[name]
        for group in prunable.groups
        for name in names[group.name]
        if name in kept
        for producer in group.producers
    }


def layers_in_loops(model: Model) -> dict[str, str]:
    """Layers in bodies that channels are not followed through -> the control-flow node outside of branches."""
    return dict(_in_loops(model.graph, rules_of(model.opset)))


def _in_loops(graph: Graph, rules: Mapping[str, Rule]) -> Iterator[tuple[str, str]]:
    for node in graph.control_nodes:
        for body in bodies_of(node):
            if is_standard(node) and node.op in rules:
                yield from _in_loops(body, rules)
                continue
            layers = [inner for each in with_bodies(body) for inner in each.nodes if spec_of(inner).has_record]
            yield from ((str(layer.name), f"{node.op} '{node.name}'") for layer in layers)


def prune_model(prunable: Prunable, units: LabelArray) -> BuiltModel:
    """The model without these units; `prunable` is used up."""
    RemoveChannels(prunable.flow, units).run(prunable.model)
    DropDeadConstants().run(prunable.model)
    return build(prunable.model)


def prune_records(prunable: Prunable, removed: Mapping[str, LabelArray]) -> tuple[PruneRecord, ...]:
    """What a record says of units that go, by the name of their group."""
    return tuple(
        _record(prunable.flow, group, removed[group.name]) for group in prunable.groups if group.name in removed
    )


def _record(flow: Flow, group: Group, units: LabelArray) -> PruneRecord:
    producers = [
        _node(flow, Reader(producer.node, producer.labels, producer.groups), group, units)
        for producer in group.producers
    ]
    producers[0] = _with_groups(producers[0], group)
    consumers = tuple(_node(flow, reader, group, units) for reader in group.readers)
    return PruneRecord(tuple(producers), consumers)


def _with_groups(node: PruneNode, group: Group) -> PruneNode:
    return node.with_attr("prune_group", group.block_count)


def _node(flow: Flow, reader: Reader, group: Group, units: LabelArray) -> PruneNode:
    own = positions(reader.labels, flow, group.units)
    gone = positions(reader.labels, flow, units)
    node = PruneNode(str(reader.node.name)).with_attr("type", str(reader.node.op))
    node = node.with_attr("begin", int(own.min(initial=0))).with_attr("end", int(own.max(initial=-1)) + 1)
    if reader.groups > 1:
        node = node.with_attr("group", reader.groups)
    return node.with_attr("prune_index", tuple(gone.tolist()))


_OTHER_MODEL = "apply the record to the model that it was made for"


def units_of_records(prunable: Prunable, records: Iterable[PruneRecord], source: str) -> LabelArray:
    """The units that a record takes out.

    Args:
        prunable: the model.
        records: its prune records; those of a 2:4 mask say nothing of channels.
        source: what errors name.

    Raises:
        RecordError: a layer is not there or makes no channels, a channel cannot go, or the record leaves out channels
            that go with those it names.
    """
    producers = {str(producer.node.name): producer for producer in prunable.flow.producers}
    found: list[LabelArray] = []
    for record in records:
        units: list[LabelArray] = []
        for node in record.producers:
            if node.name not in producers:
                raise RecordError(
                    f"{source}: prune_record: '{node.name}' is no layer of the model that makes channels; "
                    f"{_OTHER_MODEL}"
                )
            count = producers[node.name].labels.size
            beyond = [index for index in node.prune_index or () if index >= count]
            if beyond:
                raise RecordError(
                    f"{source}: prune_record: '{node.name}' has {count} channels, and prune_index names {beyond[0]}; "
                    f"{_OTHER_MODEL}"
                )
            if node.end is not None and node.end > count:
                raise RecordError(
                    f"{source}: prune_record: '{node.name}' has {count} channels, and its range ends at {node.end}; "
                    "correct the range"
                )
            units.append(units_at(producers[node.name], prunable.flow, node.prune_index or ()))
        together = np.unique(np.concatenate(units)) if units else np.zeros(0, np.int64)
        if record.producers and not together.size:
            raise RecordError(
                f"{source}: prune_record of '{record.producers[0].name}': no prune_index says which channels go; prune "
                "the model again, or delete the prune_record"
            )
        _check_free(prunable.flow, together, record, source)
        _check_followers(prunable, together, record, source)
        found.append(together)
    return np.unique(np.concatenate(found)) if found else np.zeros(0, np.int64)


def _check_free(flow: Flow, units: LabelArray, record: PruneRecord, source: str) -> None:
    fixed = units[flow.labels.is_fixed(units)]
    if fixed.size:
        raise RecordError(
            f"{source}: prune_record of '{record.producers[0].name}': a channel cannot go, since "
            f"{flow.labels.reason(int(fixed[0]))}; delete the prune_record"
        )


def _check_followers(prunable: Prunable, units: LabelArray, record: PruneRecord, source: str) -> None:
    """Every node that the record names must be there, and lose the very channels that it says."""
    nodes = {str(node.name) for graph in prunable.model.graphs() for node in graph.nodes}
    readers: dict[str, list[LabelArray]] = {}
    for producer in prunable.flow.producers:
        readers.setdefault(f"producer {producer.node.name}", []).append(producer.labels)
    for reader in prunable.flow.readers:
        readers.setdefault(f"consumer {reader.node.name}", []).append(reader.labels)
    for role, _, node in record.nodes():
        if node.name not in nodes:
            raise RecordError(
                f"{source}: prune_record of '{record.producers[0].name}': {role} '{node.name}' is no node of the "
                f"model; {_OTHER_MODEL}"
            )
        wanted = node.prune_index
        if wanted is None or f"{role} {node.name}" not in readers:
            continue
        lost = [set(positions(labels, prunable.flow, units).tolist()) for labels in readers[f"{role} {node.name}"]]
        if not any(set(wanted) == found for found in lost):
            missing = sorted(set(wanted) ^ lost[0])
            raise RecordError(
                f"{source}: prune_record of '{record.producers[0].name}': {role} '{node.name}' loses other channels "
                f"than its prune_index says, first {missing[0]}; the record belongs to another model, or was changed"
            )


def lost_inputs(prunable: Prunable, units: LabelArray) -> tuple[str, ...]:
    """Names of the nodes that read some of these units."""
    return tuple(
        dict.fromkeys(
            str(reader.node.name)
            for reader in prunable.flow.readers
            if positions(reader.labels, prunable.flow, units).size
        )
    )


def lost_places(prunable: Prunable, units: LabelArray) -> frozenset[str]:
    """Names of the layers whose results, of which each is one of many places or rows, are fewer without these units."""
    found = set()
    for producer in prunable.flow.producers:
        axes = prunable.flow.tensors.get(producer.node.outputs[0].name, ())
        own = _channel_axis(producer.node, len(axes))
        labels = [factor.labels for place, axis in enumerate(axes) if place != own for factor in axis]
        if any(one is not None and positions(one, prunable.flow, units).size for one in labels):
            found.add(str(producer.node.name))
    return frozenset(found)


def _channel_axis(layer: Node, rank: int) -> int:
    """Where a layer's channels stand in its results, which have so many axes."""
    if layer.op in ("Conv", "ConvTranspose"):
        return 1
    is_first = layer.op == "MatMul" and resolve_constant(layer.inputs[1]) is None and rank > 1
    return rank - 2 if is_first else rank - 1


def kept_results(prunable: Prunable, units: LabelArray) -> dict[str, NDArray[np.bool_]]:
    """Layer -> which of its output channels stay when these units go."""
    found: dict[str, NDArray[np.bool_]] = {}
    for producer in prunable.flow.producers:
        kept = np.ones(producer.labels.size, np.bool_)
        kept[positions(producer.labels, prunable.flow, units)] = False
        found[str(producer.node.name)] = kept
    return found
