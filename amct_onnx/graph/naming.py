"""Node names: every layer needs one of its own, because plans are keyed by it."""

from __future__ import annotations

from amct_onnx.graph.model import Model


def name_nodes(model: Model) -> int:
    """Give unnamed nodes the name ``{op_type}_{index}`` and doubled names a numeric suffix.

    ``index`` is the node's position in its graph. Names that are unique already are never touched, so the result is the
    same each time it runs.

    Returns:
        The number of nodes renamed.
    """
    nodes = [(index, node) for graph in model.graphs() for index, node in enumerate(graph.nodes)]
    taken = {node.name for _, node in nodes if node.name}
    seen: set[str] = set()
    renamed = 0
    for index, node in nodes:
        if node.name and node.name not in seen:
            seen.add(node.name)
            continue
        node.name = _free_name(node.name or f"{node.op}_{index}", taken)
        taken.add(node.name)
        seen.add(node.name)
        renamed += 1
    return renamed


def _free_name(wanted: str, taken: set[str]) -> str:
    if wanted not in taken:
        return wanted
    suffix = 1
    while f"{wanted}_{suffix}" in taken:
        suffix += 1
    return f"{wanted}_{suffix}"
