"""LSTM, GRU and RNN: their hidden units are channels, which every gate makes and the next step reads.

With H hidden units and G gates, rows g * H + h of W and R, and columns h of R, belong to unit h. A layer of two
directions has one number of units, and its results hold those of both side by side; unit h of one direction goes with
unit h of the other.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from amct_onnx.graph.op_table import resolve_constant, spec_of
from amct_onnx.graph.parts import Node
from amct_onnx.passes.pruning.adjust import Attribute, Unread
from amct_onnx.passes.pruning.axes import Axis, Factor, labelled, labels_of
from amct_onnx.passes.pruning.labels import LabelArray
from amct_onnx.passes.pruning.rules.zeros import is_zero
from amct_onnx.passes.pruning.walk import Reader, Rule, Walk
from amct_onnx.passes.recurrent import BIAS, CELL, DATA, HIDDEN, PEEPHOLES, RECURRENCE, WEIGHT, optional_input

_PEEPHOLES = 3
"""Gates of an LSTM that look at the cell."""


def recurrent(walk: Walk, node: Node) -> None:
    """W [directions, G * H, inputs], R [directions, G * H, H], B [directions, 2 * G * H], P [directions, 3 * H]."""
    obstacle = _obstacle(walk, node)
    layout, recurrence = walk.layout(node.inputs[DATA]), resolve_constant(node.inputs[RECURRENCE])
    if obstacle or layout is None or recurrence is None:
        walk.fix_inputs(node, obstacle or "its weights are computed, or the shape of its input is not known")
        return
    for axis in layout[:2]:
        for factor in axis:
            if factor.labels is not None:
                walk.labels.fix(factor.labels, f"{node.op} '{node.name}': steps and samples are no channels")
    directions, _, hidden = (int(size) for size in recurrence.shape)
    made = walk.produce(node, hidden)
    _slice_weights(walk, node, labels_of(layout[2], walk.labels), made)
    for index in (HIDDEN, CELL):
        _meet_state(walk, node, index, made)
    walk.adjust(Attribute(node, "hidden_size", (made,)))
    both: Axis = () if directions == 1 else (Factor(directions, is_constant=True),)
    results = [layout[0], both, layout[1], labelled(made)]
    for tensor, axes in zip(node.outputs, (results, results[1:], results[1:]), strict=False):
        if not tensor.is_empty():
            walk.set(tensor, axes)


def _obstacle(walk: Walk, node: Node) -> str:
    """Why nothing of a layer can be followed; empty where it can."""
    if node.attrs.get("layout", 0):
        return "its batch comes first (layout 1)"
    for index in (WEIGHT, RECURRENCE, BIAS, PEEPHOLES):
        tensor = optional_input(node, index)
        if tensor is not None and resolve_constant(tensor) is None:
            return f"its input {index} is computed and holds values for each unit"
    return ""


def _slice_weights(walk: Walk, node: Node, read: LabelArray | None, made: LabelArray) -> None:
    rows = np.tile(made, spec_of(node).gates)
    walk.slice(node, WEIGHT, {1: rows, 2: read})
    walk.slice(node, RECURRENCE, {1: rows, 2: made})
    walk.slice(node, BIAS, {1: np.tile(rows, 2)})
    walk.slice(node, PEEPHOLES, {1: np.tile(made, _PEEPHOLES)})
    walk.read(node, read)
    walk.flow.recurrences.append(Reader(node, made, weight=RECURRENCE))


def _meet_state(walk: Walk, node: Node, index: int, made: LabelArray) -> None:
    """The initial state has a value for every unit: a constant follows, what is computed must lose the same ones.

    Zeros, which exporters make once for all layers, are left out where units go, since they are what is taken anyway.
    """
    tensor = optional_input(node, index)
    if tensor is None:
        return
    if is_zero(tensor):
        walk.adjust(Unread(node, index, made))
        return
    if resolve_constant(tensor) is not None:
        walk.slice(node, index, {2: made})
        return
    layout = walk.layout(tensor)
    if layout is None:
        walk.labels.fix(made, f"{node.op} '{node.name}': the shape of its initial state '{tensor.name}' is not known")
        return
    walk.unite_axes(node, [(labelled(made), "its units"), (layout[2], f"its initial state '{tensor.name}'")])


RECURRENT: Mapping[str, Rule] = dict.fromkeys(("LSTM", "GRU", "RNN"), recurrent)
"""Rules by operator."""
