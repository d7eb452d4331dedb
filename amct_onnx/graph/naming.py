"""Node names: every layer needs one of its own, because plans are keyed by it."""

from __future__ import annotations

from collections import Counter

from onnx import ModelProto

from amct_onnx.graph.free_names import FreeNames
from amct_onnx.graph.model import Graph, Model, import_model


def name_nodes(model: Model) -> int:
    """Give every node a name of its own.

    An unnamed node is called ``{op_type}_{index}``, by its position in its graph. Where two nodes have one name, those
    in bodies get the path to them before it, ``{control node}/{attribute}/{name}``; what is still doubled gets a
    numeric suffix. Names that are unique already are never touched, so the result is the same each time it runs.

    Returns:
        The number of nodes renamed.
    """
    paths = {id(model.graph): ""}
    counts = Counter(node.name for node in model.nodes())
    free = FreeNames(name for name in counts if name)
    seen: set[str] = set()
    renamed = 0
    for graph in model.graphs():
        path = paths[id(graph)]
        for index, node in enumerate(graph.nodes):
            own = node.name or f"{node.op}_{index}"
            is_doubled = counts[node.name] > 1 if node.name else own in counts or own in seen
            if path and is_doubled:
                own = path + own
            if own != node.name or own in seen:
                node.name = free.like(own)
                renamed += 1
            seen.add(node.name)
        for node in graph.control_nodes:
            bodies = {name: body for name, body in node.attrs.items() if isinstance(body, Graph)}
            paths.update({id(body): f"{node.name}/{name}/" for name, body in bodies.items()})
    return renamed


def named(proto: ModelProto) -> Model:
    """Name every node of `proto` as :func:`name_nodes` would, in place; its graph."""
    model = import_model(proto)
    name_nodes(model)
    write_names(model)
    return model


def write_names(model: Model) -> None:
    """Write names of nodes and tensors into the very ModelProto that `model` was imported from."""
    for graph in model.graphs():
        for node in graph.nodes:
            if node.name:
                node.origin.name = node.name
            node.origin.input[:] = [tensor.name for tensor in node.inputs]
            node.origin.output[:] = [tensor.name for tensor in node.outputs]
