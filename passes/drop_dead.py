"""Remove what a rewrite left without readers."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from amct_onnx.graph.edit import Editor
from amct_onnx.graph.model import Model
from amct_onnx.graph.op_table import is_standard
from amct_onnx.graph.parts import Tensor
from amct_onnx.passes.base import PassResult


@dataclass(frozen=True)
class DropDeadConstants:
    """Constant and Identity nodes whose output nothing reads any more go; what was unread in the source stays."""

    def run(self, model: Model) -> PassResult:
        """Remove them, readers before producers."""
        editor = Editor(model)
        changed: list[str] = []
        # Bodies read what stands outside of them, never the other way round.
        for graph in reversed(list(model.graphs())):
            for node in reversed(graph.nodes):
                if node.op not in ("Constant", "Identity") or not is_standard(node):
                    continue
                result = node.outputs[0]
                is_kept = result.outputs or editor.is_output(result) or editor.is_body_output(result)
                if not is_kept and result.name not in graph.unread_outputs:
                    editor.remove(node)
                    changed.append(node.name)
        editor.commit()
        return PassResult(tuple(reversed(changed)))


def drop_unread(model: Model, tensors: Iterable[Tensor]) -> None:
    """Remove what makes these tensors, where nothing reads them, and then what only that has read."""
    editor = Editor(model)
    waiting = [producer for tensor in tensors for producer in tensor.inputs]
    while waiting:
        node = waiting.pop()
        is_read = any(
            tensor.outputs or editor.is_output(tensor) or editor.is_body_output(tensor) for tensor in node.outputs
        )
        if node.outputs and not is_read:
            waiting += [producer for tensor in node.inputs for producer in tensor.inputs]
            editor.remove(node)
    editor.commit()
