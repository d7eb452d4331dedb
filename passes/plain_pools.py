"""AveragePool as onnxruntime's integer kernel understands it."""

from __future__ import annotations

from dataclasses import dataclass

from amct_onnx.graph.edit import drop_attributes
from amct_onnx.graph.model import Model
from amct_onnx.graph.op_table import Kernel, kernel_of
from amct_onnx.passes.base import PassResult


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
