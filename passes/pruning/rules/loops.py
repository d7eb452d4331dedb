"""Loop and Scan: what a run of the body hands to the next has the channels of what the first run was given."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from amct_onnx.graph.model import Graph, bodies_of
from amct_onnx.graph.op_table import resolve_constant
from amct_onnx.graph.parts import Node, Tensor
from amct_onnx.passes.pruning.adjust import Picked
from amct_onnx.passes.pruning.axes import Layout, has_labels, labelled, labels_of, plain_axis, shape_of, size_of
from amct_onnx.passes.pruning.rules.zeros import is_zero
from amct_onnx.passes.pruning.walk import Rule, Walk


@dataclass(frozen=True, eq=False)
class _Runs:
    """The tensors around and in a body, by what they are to it.

    Attributes:
        body: what is run again and again.
        begins: which inputs of the node the first run is given as values to carry on.
        taken: inputs of the body that hold carried values.
        given: its outputs that hold them.
        collected: its outputs of which the node's results hold one of each run, with the axis along which these stand.
    """

    body: Graph
    begins: Sequence[int]
    taken: Sequence[Tensor]
    given: Sequence[Tensor]
    collected: Sequence[tuple[Tensor, int]]


def loop(walk: Walk, node: Node) -> None:
    """Inputs: number of runs, condition, what is carried; the body's: number of the run, condition, what is carried."""
    (body,) = bodies_of(node)
    count = len(node.inputs) - 2
    collected = [(tensor, 0) for tensor in body.outputs[1 + count :]]
    _run(walk, node, _Runs(body, range(2, 2 + count), body.inputs[2:], body.outputs[1 : 1 + count], collected))
    walk.fix(body.outputs[0], f"Loop '{node.name}': whether it goes on is computed from their number")


def scan(walk: Walk, node: Node) -> None:
    """Inputs: what is carried, then what is taken apart along an axis, a position in each run."""
    (body,) = bodies_of(node)
    count = len(node.inputs) - int(node.attrs["num_scan_inputs"])
    axes = list(node.attrs.get("scan_input_axes") or [0] * (len(node.inputs) - count))
    for index, axis in enumerate(axes, count):
        _take_apart(walk, node, index, axis, body.inputs[index])
    along = list(node.attrs.get("scan_output_axes") or [0] * (len(body.outputs) - count))
    collected = list(zip(body.outputs[count:], along, strict=True))
    _run(walk, node, _Runs(body, range(count), body.inputs[:count], body.outputs[:count], collected))


def _run(walk: Walk, node: Node, runs: _Runs) -> None:
    for index, taken in zip(runs.begins, runs.taken, strict=True):
        layout = _beginning(walk, node, index)
        if layout is not None:
            walk.set(taken, layout)
    walk.follow_nodes(runs.body)
    results = iter(node.outputs)
    for taken, given in zip(runs.taken, runs.given, strict=True):
        _carry_on(walk, node, taken, given, next(results))
    for (tensor, axis), result in zip(runs.collected, results, strict=True):
        _collect(walk, node, tensor, axis, result)


def _beginning(walk: Walk, node: Node, index: int) -> Layout | None:
    """What the first run is given, with labels for what the body may bring into it later.

    A constant loses the positions of channels that go; of computed zeros, as exporters begin with, they are left out
    before the loop, unless an axis is of free length.
    """
    tensor = node.inputs[index]
    if resolve_constant(tensor) is not None:
        return walk.follow_constant(node, index)
    layout = walk.layout(tensor)
    if layout is None or not is_zero(tensor):
        return layout
    fixed = walk.fixed_axes(tensor, len(layout))
    fresh = {
        axis: walk.labels.fresh(size_of(factors))
        for axis, factors in enumerate(layout)
        if axis in fixed and size_of(factors) > 1 and not has_labels(factors)
    }
    if fresh:
        walk.adjust(Picked(node, index, fresh))
    return tuple(labelled(fresh[axis]) if axis in fresh else factors for axis, factors in enumerate(layout))


def _take_apart(walk: Walk, node: Node, index: int, axis: int, taken: Tensor) -> None:
    tensor = node.inputs[index]
    layout = walk.layout(tensor)
    if layout is None:
        return
    axis %= len(layout)
    if resolve_constant(tensor) is not None:
        layout = walk.follow_constant(node, index, leave=axis) or layout
    along = labels_of(layout[axis], walk.labels)
    if along is not None:
        walk.labels.fix(along, f"Scan '{node.name}': it takes a position in each run")
    walk.set(taken, [factors for place, factors in enumerate(layout) if place != axis])


def _carry_on(walk: Walk, node: Node, taken: Tensor, given: Tensor, result: Tensor) -> None:
    """The next run is given what this one gave."""
    if not walk.has_labels(taken) and not walk.has_labels(given):
        walk.fix(given, f"{node.op} '{node.name}': it carries on what is computed from their number")
        return
    before, behind = walk.layout(taken), walk.layout(given)
    if before is None or behind is None or shape_of(before) != shape_of(behind):
        for tensor in (taken, given):
            walk.fix(tensor, f"{node.op} '{node.name}': what it carries on as '{given.name}' changes its shape")
        return
    names = (f"'{taken.name}' of the run before", f"'{given.name}' of this run")
    walk.set(
        result,
        [walk.unite_axes(node, list(zip(axes, names, strict=True))) for axes in zip(before, behind, strict=True)],
    )


def _collect(walk: Walk, node: Node, tensor: Tensor, axis: int, result: Tensor) -> None:
    """One of each run, side by side."""
    layout, shape = walk.layout(tensor), walk.shape(result)
    if layout is None or shape is None or len(shape) != len(layout) + 1:
        walk.fix(tensor, f"{node.op} '{node.name}': the shape of its result '{result.name}' is not known")
        return
    axis %= len(shape)
    walk.set(result, [*layout[:axis], plain_axis(shape[axis]), *layout[axis:]])


LOOPS: Mapping[str, Rule] = {"Loop": loop, "Scan": scan}
"""Rules by operator."""
