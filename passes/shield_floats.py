"""Nodes that must stay float are kept from becoming integer kernels that compute something else."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from amct_onnx.graph.edit import Editor, replace_input
from amct_onnx.graph.model import Model
from amct_onnx.graph.op_table import Kernel, is_standard, kernel_of
from amct_onnx.graph.parts import Node
from amct_onnx.passes.base import PassResult

_LOWEST = np.array(np.finfo(np.float32).min, np.float32)


@dataclass(frozen=True)
class ShieldFloats:
    """A Max with the lowest number stands between a DequantizeLinear and a Softmax, or a pool that must stay float.

    The runtime makes integer kernels of both before a QuantizeLinear. That of Softmax does not saturate in older
    versions: what lies above the range comes out as the lowest value. The Max changes no value, and no version of the
    runtime takes it out.
    """

    def run(self, model: Model) -> PassResult:
        """Put the Max before such nodes; comes after the pairs."""
        editor = Editor(model)
        changed: list[str] = []
        for node in [node for node in model.graph.nodes if _may_be_mistaken(node)]:
            source = node.inputs[0]
            if source.inputs and source.inputs[0].op == "DequantizeLinear":
                lowest = model.add_constant(f"{node.name}.lowest", _LOWEST)
                shielded = model.new_tensor(f"{source.name}.shielded", source.dtype)
                editor.insert_before(node, [Node("Max", f"{node.name}.shield", {}, [source, lowest], [shielded])])
                replace_input(node, 0, shielded)
                changed.append(node.name)
        editor.commit()
        return PassResult(tuple(changed))


def _may_be_mistaken(node: Node) -> bool:
    if not is_standard(node):
        return False
    is_float_pool = node.op == "AveragePool" and kernel_of(node) is Kernel.FLOAT and "dilations" not in node.attrs
    return is_float_pool or node.op == "Softmax"
