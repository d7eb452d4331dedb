"""Which channels matter, from weights alone."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from amct_onnx.graph import Model, constant_array
from amct_onnx.graph.op_table import OPS, known_constant, resolve_constant, spec_of
from amct_onnx.graph.parts import Node
from amct_onnx.graph.weights import Array
from amct_onnx.passes.pruning.groups import Group
from amct_onnx.passes.pruning.walk import Flow
from amct_onnx.passes.recurrent import RECURRENCE, WEIGHT

Scores = NDArray[np.float64]


def filter_rows(node: Node) -> Array:
    """The weights of each output channel of a layer: [channels, others].

    Those of a hidden unit of a recurrent layer are its rows of W and R, of every gate and direction.
    """
    if spec_of(node).gates:
        return _unit_rows(node)
    second = resolve_constant(node.inputs[1])
    is_turned = node.op == "MatMul" and (second is None or len(second.shape) != 2)
    index = 0 if is_turned else 1
    constant = resolve_constant(node.inputs[index])
    if constant is None:
        raise TypeError(f"'{node.name}' has no constant weight")
    weight = constant_array(constant)
    if index == 0:
        return weight
    return OPS[node.op].out_channels(node, tuple(int(size) for size in weight.shape)).rows(weight)


def _unit_rows(node: Node) -> Array:
    """[directions, gates * hidden, columns] of W and of R as [hidden, others]."""
    weights = [constant_array(known_constant(node.inputs[index])) for index in (WEIGHT, RECURRENCE)]
    hidden = weights[1].shape[2]
    gates = [weight.reshape(weight.shape[0], -1, hidden, weight.shape[2]) for weight in weights]
    return np.concatenate([np.moveaxis(gate, 2, 0).reshape(hidden, -1) for gate in gates], axis=1)


def balanced_l2(rows: Array) -> Scores:
    """Norm of each channel's weights over their number, brought to [0, 1] within the layer.

    AMCT's balanced L2 norm, so that layers of different sizes can be added up. All zeros where all norms are equal.

    Args:
        rows: float [channels, weights of a channel].
    """
    norms = np.linalg.norm(rows.astype(np.float64), axis=1) / max(1, rows.shape[1])
    low, high = norms.min(initial=np.inf), norms.max(initial=-np.inf)
    return np.zeros_like(norms) if not high > low else (norms - low) / (high - low)


def l2_scores(flow: Flow, group: Group, fused: Model) -> Scores:
    """Score of each unit of a group: those of its channels, added up over all layers that make them.

    Args:
        flow: where the group was found.
        group: the group.
        fused: the model with what follows a layer (BatchNormalization, Mul, Add) folded into its weights, so that a
            channel's norm says what comes out of it.
    """
    nodes = {node.name: node for node in fused.nodes()}
    per_layer = {producer.node.name: nodes.get(producer.node.name, producer.node) for producer in group.producers}
    return unit_scores(flow, group, {name: balanced_l2(filter_rows(node)) for name, node in per_layer.items()})


def unit_scores(flow: Flow, group: Group, scores: Mapping[str, Scores]) -> Scores:
    """Scores of units from those of the channels of each layer: what belongs to one unit is added up."""
    total = np.zeros(group.units.size)
    order = np.argsort(group.units)
    for producer in group.producers:
        roots = flow.labels.find(producer.labels)
        places = np.searchsorted(group.units, roots, sorter=order)
        np.add.at(total, order[places], scores[producer.node.name])
    return total


def lowest(group: Group, scores: Scores, count: int) -> NDArray[np.int64]:
    """The units that go: of every block the `count` lowest that are free; among equal ones the first.

    Args:
        group: the group.
        scores: one per unit.
        count: how many per block.
    """
    chosen: list[NDArray[np.int64]] = []
    for block in range(group.block_count):
        own = np.flatnonzero(group.is_free & (group.blocks == block))
        chosen.append(np.sort(own[np.argsort(scores[own], kind="stable")[:count]]))
    return np.concatenate(chosen)
