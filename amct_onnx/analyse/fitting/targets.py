"""What a layer is fitted to: the float model's results, and in a residual sum what the other operand lost besides.

Where a layer's results are added to those of another branch, the error that the other operand brings along would grow
from one sum to the next. So the layer is fitted to its float results plus that error, as channel pruning does in
residual networks (He, Zhang and Sun 2017, section 3.3): what it can make up for of the sum, it does.
"""

from __future__ import annotations

from collections.abc import Collection, Container, Iterable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from amct_onnx.graph.model import Graph, bodies_of
from amct_onnx.graph.op_table import resolve_constant
from amct_onnx.graph.parts import Node, Tensor
from amct_onnx.graph.weights import Array

_FURTHEST = 2
"""Constants that may be added on the way from a layer to a sum: a bias, and what an exporter makes of another."""


def other_operands(graph: Graph, layers: Sequence[Collection[Node]]) -> dict[str, str]:
    """Name of a layer -> the tensor to whose sum with its results it is fitted; most layers have none.

    Args:
        graph: the compressed model's, its nodes in order.
        layers: the layers that are fitted, in stages: none of its own stage or later may change that tensor.
    """
    last = _last_stages(graph.nodes, layers)
    given = {id(tensor) for tensor in graph.outputs}
    found: dict[str, str] = {}
    for stage, members in enumerate(layers):
        for node in members:
            other = _added_to(node, given)
            if other is not None and last.get(str(other.name), -1) < stage:
                found[str(node.name)] = str(other.name)
    return found


def _last_stages(nodes: Iterable[Node], layers: Sequence[Collection[Node]]) -> dict[str, int]:
    """Tensor -> the last stage that changes it; those that none does are missing."""
    stages = {str(node.name): stage for stage, members in enumerate(layers) for node in members}
    found: dict[str, int] = {}
    for node in nodes:
        # What a body captures is no input, so that all results of a node with bodies count as changed.
        last = max((found.get(str(read.name), -1) for read in node.inputs), default=-1)
        last = max(last, stages.get(str(node.name), -1), len(layers) if bodies_of(node) else -1)
        if last >= 0:
            found.update((str(made.name), last) for made in node.outputs)
    return found


def _added_to(node: Node, given: Container[int]) -> Tensor | None:
    """The other operand of the sum that alone reads a layer's results; constants may be added on the way."""
    made = node.outputs[0]
    for _ in range(_FURTHEST + 1):
        readers = list(made.outputs)
        if len(readers) != 1 or readers[0].op != "Add" or id(made) in given:
            return None
        first, second = readers[0].inputs
        if first is second:
            return None
        other = second if first is made else first
        if resolve_constant(other) is None:
            return other
        made = readers[0].outputs[0]
    return None


def with_what_was_lost(
    tensors: Sequence[Mapping[str, Array]], other: str, kept: NDArray[np.bool_], axis: int, result: str
) -> Array:
    """A layer's float results that stay, plus what another operand of their sum lost.

    Args:
        tensors: of the float and of the compressed model, by name.
        other: the other operand; empty for none.
        kept: which channels of the results stay: bool [channels].
        axis: where they stand.
        result: the layer's results.
    """
    whole, left = tensors
    own: Array = np.compress(kept, whole[result], axis=axis)
    if not other or whole[other].shape != whole[result].shape or left[other].shape != own.shape:
        # What is broadcast loses something else than single results do.
        return own
    wide = np.result_type(own.dtype, np.float32)
    with np.errstate(invalid="ignore", over="ignore"):
        lost = np.subtract(np.compress(kept, whole[other], axis=axis), left[other], dtype=wide)
    # A mask of infinities loses nothing.
    return np.asarray(own + np.where(np.isfinite(lost), lost, 0))
