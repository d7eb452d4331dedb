"""Single inputs of nodes that can be quantized by themselves, to move less data (AMCT's ``tensor_quantize``)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from amct_onnx.graph.model import Model
from amct_onnx.graph.op_table import OPS, resolve_constant, spec_of
from amct_onnx.graph.parts import Node, Tensor
from amct_onnx.passes.locate import Layer


@dataclass(frozen=True)
class InputSite:
    """One input of one node.

    Attributes:
        node: the Add or MaxPool.
        index: which of its inputs.
    """

    node: Node
    index: int

    @property
    def key(self) -> str:
        """Its key in a record."""
        return input_key(self.node.name, self.index)

    @property
    def stem(self) -> str:
        """What the names of the nodes that quantize it begin with."""
        return f"{self.node.name}_{self.index}"

    @property
    def tensor(self) -> Tensor:
        """The tensor that comes in there."""
        return self.node.inputs[self.index]


def input_key(node: str, index: int) -> str:
    """Key of a node's input in a record."""
    return f"{node}:{index}"


class InputSites:
    """The nodes of a model by name, and what may be quantized of their inputs."""

    def __init__(self, model: Model, layers: Iterable[Layer]) -> None:
        """Look at `model`, of which `layers` will be quantized."""
        self._nodes = {node.name: node for graph in model.graphs() for node in graph.nodes}
        self._bodies = model.body_node_ids()
        self._bias_adds = {id(layer.bias_add): layer.name for layer in layers if layer.bias_add is not None}

    def site(self, node: str, index: int) -> InputSite | str:
        """An input, or why it cannot be quantized."""
        if node not in self._nodes:
            return "the model has no such node"
        found = self._nodes[node]
        return self._against(found, index) or InputSite(found, index)

    def obstacle(self, node: str, index: int) -> str | None:
        """Why an input cannot be quantized, None when it can."""
        found = self.site(node, index)
        return found if isinstance(found, str) else None

    def at(self, keys: Iterable[str]) -> Iterator[InputSite]:
        """The sites of keys that have been found good."""
        for key in keys:
            node, _, index = key.rpartition(":")
            found = self.site(node, int(index))
            if isinstance(found, str):
                raise LookupError(f"input '{key}': {found}")
            yield found

    def operator(self, node: str) -> str:
        """Operator of a node; empty when there is none of that name."""
        return str(self._nodes[node].op) if node in self._nodes else ""

    def _against(self, node: Node, index: int) -> str | None:
        if not spec_of(node).quantizable_inputs:
            known = " and ".join(name for name, spec in OPS.items() if spec.quantizable_inputs)
            return f"single inputs are quantized of {known} only, not of a {node.op}"
        if id(node) in self._bodies:
            return "it lies inside a control-flow body"
        if not 0 <= index < len(node.inputs) or node.inputs[index].is_empty():
            return f"this {node.op} has {len(node.inputs)} inputs, counted from 0"
        if id(node) in self._bias_adds:
            return f"this Add is the bias of the quantized layer '{self._bias_adds[id(node)]}'"
        tensor = node.inputs[index]
        if resolve_constant(tensor) is not None:
            return "this input is a constant, which no one has to move"
        if tensor.dtype is not None and np.dtype(tensor.dtype) != np.float32:
            return f"this input is {np.dtype(tensor.dtype).name}, not float32"
        return None
