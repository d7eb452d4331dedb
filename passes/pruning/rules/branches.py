"""If: channels run through both branches, whose results meet."""

from __future__ import annotations

from collections.abc import Mapping

from amct_onnx.graph.model import bodies_of
from amct_onnx.graph.parts import Node, Tensor
from amct_onnx.passes.pruning.axes import shape_of
from amct_onnx.passes.pruning.walk import Rule, Walk


def branches(walk: Walk, node: Node) -> None:
    """What a branch makes or reads loses the same channels whichever of them runs."""
    bodies = bodies_of(node)
    for body in bodies:
        walk.follow_nodes(body)
    for result, *made in zip(node.outputs, *(body.outputs for body in bodies), strict=True):
        _meet(walk, node, result, made)


def _meet(walk: Walk, node: Node, result: Tensor, made: list[Tensor]) -> None:
    if not any(map(walk.has_labels, made)):
        return
    layouts = [walk.layout(tensor) for tensor in made]
    known = [layout for layout in layouts if layout is not None]
    if len(known) < len(made) or len(set(map(shape_of, known))) > 1:
        for tensor in made:
            walk.fix(tensor, f"If '{node.name}': its branches give '{result.name}' in different shapes")
        return
    names = [f"'{tensor.name}' of another branch" for tensor in made]
    walk.set(result, [walk.unite_axes(node, list(zip(axes, names, strict=True))) for axes in zip(*known, strict=True)])


BRANCHES: Mapping[str, Rule] = {"If": branches}
"""Rules by operator."""
