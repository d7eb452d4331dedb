"""AveragePool as onnxruntime's integer kernel understands it, and out of that kernel's hands where it does not."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from amct_onnx.graph.edit import Editor, drop_attributes, replace_input
from amct_onnx.graph.model import Model
from amct_onnx.graph.op_table import Kernel, is_standard, kernel_of
from amct_onnx.graph.parts import Node
from amct_onnx.passes.base import PassResult

_LOWEST = np.array(np.finfo(np.float32).min, np.float32)


@dataclass(frozen=True)
class DropUnitDilations:
    """AveragePool loses dilations of 1, which mean nothing and which onnxruntime's integer kernel does not know."""

    def run(self, model: Model) -> PassResult:
        """Drop the attribute."""
        changed: list[str] = []
        for node in model.nodes():
            if node.op == "AveragePool" and "dilations" in node.attrs and kernel_of(node) is Kernel.ELEMENTWISE:
                drop_attributes(node, ("dilations",))
                changed.append(node.name)
        return PassResult(tuple(changed))


@dataclass(frozen=True)
class ShieldFloatPools:
    """An AveragePool that must stay float is kept from becoming an integer kernel between two pairs.

    The runtime makes one of every pool without dilations between DequantizeLinear and QuantizeLinear. A Max with the
    lowest number changes no value, and no version of the runtime takes it out.
    """

    def run(self, model: Model) -> PassResult:
        """Put the Max before such pools; comes after the pairs."""
        editor = Editor(model)
        changed: list[str] = []
        for node in [node for node in model.graph.nodes if node.op == "AveragePool" and is_standard(node)]:
            if kernel_of(node) is not Kernel.FLOAT or "dilations" in node.attrs:
                continue
            source = node.inputs[0]
            if source.inputs and source.inputs[0].op == "DequantizeLinear":
                lowest = model.add_constant(f"{node.name}.lowest", _LOWEST)
                shielded = model.new_tensor(f"{source.name}.shielded", source.dtype)
                editor.insert_before(node, [Node("Max", f"{node.name}.shield", {}, [source, lowest], [shielded])])
                replace_input(node, 0, shielded)
                changed.append(node.name)
        editor.commit()
        return PassResult(tuple(changed))
