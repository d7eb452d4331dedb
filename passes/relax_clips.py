"""Clip becomes Relu where the quantizer behind it cuts off the same values."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from amct_onnx.graph.edit import Editor
from amct_onnx.graph.model import Model
from amct_onnx.graph.op_table import is_clamp, spec_of
from amct_onnx.graph.parts import Node
from amct_onnx.passes.base import PassResult


@dataclass(frozen=True)
class RelaxClips:
    """AscendDequant, Clip from 0 to a bound, AscendQuant: the Clip becomes a Relu where the bound needs no Clip.

    That is where ``round(bound * scale) + offset >= qmax`` with the quantizer's own multiplier: it then maps the
    bound, and whatever lies above, to its largest integer; for a Relu6 where ``(127 - offset_d) * scale_d <= 6``. Only
    where the Clip alone reads the dequantized tensor and nothing but such quantizers read the Clip.
    """

    def run(self, model: Model) -> PassResult:
        """Replace them; the node's name stays."""
        editor = Editor(model)
        in_bodies = model.body_node_ids()
        changed: list[str] = []
        for node in model.graph.nodes:
            if node.op != "Clip" or not _is_relaxed(editor, node, in_bodies):
                continue
            source, output = node.inputs[0], node.outputs[0]
            editor.remove(node)
            editor.insert_after(node, [Node("Relu", node.name, inputs=[source], outputs=[output])])
            changed.append(node.name)
        editor.commit()
        return PassResult(tuple(changed))


def _is_relaxed(editor: Editor, clip: Node, in_bodies: set[int]) -> bool:
    source, output = clip.inputs[0], clip.outputs[0]
    if not is_clamp(clip) or len(source.outputs) != 1 or not source.inputs or source.inputs[0].op != "AscendDequant":
        return False
    if any(editor.is_output(tensor) or editor.is_body_output(tensor) for tensor in (source, output)):
        return False
    low, high = spec_of(clip).bounds(clip)
    readers: list[Node] = output.outputs
    return (
        low == 0.0
        and bool(readers)
        and all(
            reader.op == "AscendQuant" and id(reader) not in in_bodies and _saturates(reader, high)
            for reader in readers
        )
    )


def _saturates(quant: Node, bound: float) -> bool:
    """Whether the quantizer maps `bound` to its largest integer, in its own float32 arithmetic."""
    qmax = 2 ** (int(str(quant.attrs["dst_type"]).removeprefix("INT")) - 1) - 1
    integer = np.rint(np.float32(bound) * np.float32(quant.attrs["scale"])) + np.float32(quant.attrs["offset"])
    return bool(integer >= qmax)
