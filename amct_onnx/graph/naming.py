"""Node names: every layer needs one of its own, because plans are keyed by it."""

from __future__ import annotations

from onnx import ModelProto

from amct_onnx.graph.free_names import FreeNames
from amct_onnx.graph.model import Model, import_model


def name_nodes(model: Model) -> int:
    """Give unnamed nodes the name ``{op_type}_{index}`` and doubled names a numeric suffix.

    ``index`` is the node's position in its graph. Names that are unique already are never touched, so the result is the
    same each time it runs.

    Returns:
        The number of nodes renamed.
    """
    nodes = [(index, node) for graph in model.graphs() for index, node in enumerate(graph.nodes)]
    free = FreeNames(node.name for _, node in nodes if node.name)
    seen: set[str] = set()
    renamed = 0
    for index, node in nodes:
        if not node.name or node.name in seen:
            node.name = free.like(node.name or f"{node.op}_{index}")
            renamed += 1
        seen.add(node.name)
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
