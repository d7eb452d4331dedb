"""What a model computes and holds."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from amct_onnx.graph import Model
from amct_onnx.graph.model import Graph, bodies_of
from amct_onnx.graph.op_table import resolve_constant, spec_of
from amct_onnx.graph.parts import Node
from amct_onnx.passes.recurrent import RECURRENCE, WEIGHT

Shapes = Mapping[str, Sequence[int]]


@dataclass(frozen=True)
class Cost:
    """What one model costs.

    Attributes:
        parameters: number of values in its constants.
        multiply_adds: of one sample, as far as shapes are known.
    """

    parameters: int
    multiply_adds: int


def model_cost(model: Model, shapes: Shapes) -> Cost:
    """Cost of a model: of what runs in branches the dearest, of loops one run, since nobody knows how many there are.

    Args:
        model: the model, pruned or not.
        shapes: sizes of its tensors before pruning; those that pruning changes are not asked for.
    """
    parameters = sum(math.prod(constant.shape) for graph in model.graphs() for constant in graph.initializers.values())
    parameters += sum(
        math.prod(constant.shape)
        for node in model.nodes()
        if node.op == "Constant" and (constant := resolve_constant(node.outputs[0])) is not None
    )
    return Cost(parameters, int(graph_cost(model.graph, lambda node: layer_multiply_adds(node, shapes))))


def graph_cost(graph: Graph, of: Callable[[Node], float]) -> float:
    """What the nodes of a graph cost together: of branches the dearest counts, of loops one run.

    Args:
        graph: the graph.
        of: what one node costs.
    """
    own = sum(of(node) for node in graph.nodes)
    inside = [[graph_cost(body, of) for body in bodies_of(node)] for node in graph.control_nodes]
    return own + sum(map(max, inside))


def nodes_cost(nodes: Iterable[Node], shapes: Shapes) -> Cost:
    """Cost of some nodes; a constant that several of them read is counted once."""
    nodes = list(nodes)
    read = (resolve_constant(tensor) for node in nodes for tensor in node.inputs)
    constants = {id(constant): constant for constant in read if constant is not None}
    parameters = sum(math.prod(constant.shape) for constant in constants.values())
    return Cost(parameters, sum(layer_multiply_adds(node, shapes) for node in nodes))


def layer_multiply_adds(node: Node, shapes: Shapes) -> int:
    """Multiply-adds of one layer for one sample: its weights times the positions at which they are applied."""
    return sum(weight_multiply_adds(node, shapes).values())


def weight_multiply_adds(node: Node, shapes: Shapes) -> dict[int, int]:
    """The same by the input that holds the weights: a recurrent layer applies all of W and of R in every step."""
    spec = spec_of(node)
    if spec.weight is None or not spec.has_record:
        return {}
    if spec.gates:
        return _recurrent(node, shapes)
    indexes = (1, 0) if node.op == "MatMul" else (spec.weight,)
    weights = {index: constant for index in indexes if (constant := resolve_constant(node.inputs[index])) is not None}
    where = shapes.get((node.inputs[0] if spec.scatters else node.outputs[0]).name)
    if not weights or where is None:
        return {}
    index, weight = next(iter(weights.items()))
    if node.op == "MatMul":
        return {index: _product(weight.shape, index, where)}
    return {index: math.prod(weight.shape) * math.prod(where[2:])}


def _product(weight: Sequence[int], index: int, results: Sequence[int]) -> int:
    """Multiply-adds of a product, all that lead to one result times the results of one sample.

    The first axis of the results counts samples, unless it is one of the weight: its channels where it comes first, or
    its matrices.
    """
    inner = weight[-2] if index and len(weight) > 1 else weight[-1]
    more = len(results) - len(weight)
    is_of_weight = more < 0 or (more == 0 and (weight[0] > 1 if len(weight) > 2 else index == 0))
    return int(inner) * math.prod(results if is_of_weight else results[1:])


def _recurrent(node: Node, shapes: Shapes) -> dict[int, int]:
    read = shapes.get(node.inputs[0].name)
    if read is None or len(read) != 3 or node.attrs.get("layout", 0):
        return {}
    weights = {index: resolve_constant(node.inputs[index]) for index in (WEIGHT, RECURRENCE)}
    return {index: read[0] * math.prod(weight.shape) for index, weight in weights.items() if weight is not None}
