"""Relu and Clip go where the QuantizeLinear behind them cuts off the same values."""

from __future__ import annotations

from dataclasses import dataclass

from amct_onnx.graph.edit import Editor, replace_input
from amct_onnx.graph.model import Graph, Model
from amct_onnx.graph.op_table import is_clamp
from amct_onnx.graph.parts import Node
from amct_onnx.passes.base import PassResult
from amct_onnx.passes.qdq_placement import output_bounds
from amct_onnx.passes.quantizers import quantizer_range


@dataclass(frozen=True)
class DropEnforcedClamps:
    """A Relu or Clip read by one QuantizeLinear alone is removed where the quantizer's range lies within its bounds.

    Only where nothing else reads the clamp's input, so that its producer can write integers directly.
    """

    def run(self, model: Model) -> PassResult:
        """Remove them."""
        editor = Editor(model)
        changed = [name for graph in model.graphs() for name in _dropped(editor, graph)]
        editor.commit()
        return PassResult(tuple(changed))


def _dropped(editor: Editor, graph: Graph) -> list[str]:
    """Names of the clamps that went from one graph; a body's quantizers say nothing about clamps outside."""
    here = {id(node) for node in graph.nodes}
    changed: list[str] = []
    for node in graph.nodes:
        clamp = node.inputs[0].inputs[0] if node.op == "QuantizeLinear" and node.inputs[0].inputs else None
        if clamp is None or id(clamp) not in here or not _is_enforced(editor, clamp, node):
            continue
        graph.retyped.add(clamp.outputs[0].name)
        replace_input(node, 0, clamp.inputs[0])
        changed.append(clamp.name)
        editor.remove(clamp)
    return changed


def _is_enforced(editor: Editor, clamp: Node, quantize: Node) -> bool:
    if not is_clamp(clamp) or not (editor.is_private(clamp.inputs[0]) and editor.is_private(clamp.outputs[0])):
        return False
    reached = quantizer_range(quantize)
    low, high = output_bounds(clamp.outputs[0])
    return reached is not None and reached[0] >= low and reached[1] <= high
