"""Which channels matter, from weights alone."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from amct_onnx.graph import constant_array
from amct_onnx.graph.op_table import OPS, known_constant, resolve_constant, spec_of
from amct_onnx.graph.parts import Node
from amct_onnx.graph.weights import Array
from amct_onnx.passes.pruning.groups import Group
from amct_onnx.passes.pruning.walk import Flow, Producer
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
    return balanced(np.linalg.norm(rows.astype(np.float64), axis=1) / max(1, rows.shape[1]))


def balanced(values: Scores) -> Scores:
    """The values of a layer's channels brought to [0, 1], so that layers can be added up; zeros where all are equal."""
    low, high = values.min(initial=np.inf), values.max(initial=-np.inf)
    return np.zeros_like(values) if not high > low else (values - low) / (high - low)


def layer_norms(group: Group, fused: Mapping[str, Node]) -> dict[str, Scores]:
    """Balanced norm of each channel, by layer of a group.

    Args:
        group: the group.
        fused: the nodes by name of the model with what follows a layer (BatchNormalization, Mul, Add) folded into its
            weights, so that a channel's norm says what comes out of it.
    """
    nodes = {str(one.node.name): fused.get(str(one.node.name), one.node) for one in group.producers}
    return {name: balanced_l2(filter_rows(node)) for name, node in nodes.items()}


def layer_scales(flow: Flow, group: Group) -> dict[str, Scores]:
    """Balanced ``|gamma|`` of each channel, of the layers whose results only a BatchNormalization reads.

    Behind a normalization ``|gamma|`` is the standard deviation of a channel (Liu et al. 2017, Network Slimming).
    """
    seen = {id(reader.node): flow.labels.find(reader.labels) for reader in group.readers}
    found: dict[str, Scores] = {}
    for producer in group.producers:
        norm = _norm_behind(producer.node)
        gamma = None if norm is None else resolve_constant(norm.inputs[1])
        # A product's result may have its channels on another axis than the normalization.
        own = seen.get(id(norm), np.zeros(0, np.int64))
        if gamma is not None and np.array_equal(own, flow.labels.find(producer.labels)):
            found[str(producer.node.name)] = balanced(np.abs(constant_array(gamma).astype(np.float64)))
    return found


def _norm_behind(node: Node) -> Node | None:
    """The BatchNormalization that alone reads a layer's channels, perhaps behind its bias."""
    tensor = node.outputs[0]
    while len(tensor.outputs) == 1:
        (reader,) = tensor.outputs
        if reader.op == "Add" and any(resolve_constant(other) is not None for other in reader.inputs):
            tensor = reader.outputs[0]
            continue
        is_norm = reader.op == "BatchNormalization" and reader.inputs[0] is tensor
        return reader if is_norm else None
    return None


def unit_scores(flow: Flow, group: Group, scores: Mapping[str, Scores]) -> Scores:
    """Scores of units from those of the channels of each layer: what belongs to one unit is added up."""
    total = np.zeros(group.units.size)
    for producer in group.producers:
        np.add.at(total, units_of(flow, group, producer), scores[str(producer.node.name)])
    return total


def units_of(flow: Flow, group: Group, producer: Producer) -> NDArray[np.int64]:
    """Index of the unit that each output channel of one of a group's layers belongs to."""
    order = np.argsort(group.units)
    return np.asarray(order[np.searchsorted(group.units, flow.labels.find(producer.labels), sorter=order)], np.int64)


def removal_order(group: Group, scores: Scores, count: int) -> NDArray[np.int64]:
    """The units that go, in their order: the lowest free one of every block, then the next of every block.

    Args:
        group: the group.
        scores: one per unit; among equal ones the first goes.
        count: how many go of every block.
    """
    blocks = [np.flatnonzero(group.is_free & (group.blocks == block)) for block in range(group.block_count)]
    rising = [own[np.argsort(scores[own], kind="stable")] for own in blocks]
    return np.stack([own[:count] for own in rising], axis=1).reshape(-1)
