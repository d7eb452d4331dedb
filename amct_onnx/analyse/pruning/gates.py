"""What the gates of a recurrent layer make of its input or of its last state, row by row."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from amct_onnx.analyse.fitting.views.base import chosen_rows
from amct_onnx.graph.op_table import resolve_constant, spec_of
from amct_onnx.graph.parts import Node
from amct_onnx.graph.weights import Array
from amct_onnx.passes.pruning.labels import LabelArray
from amct_onnx.passes.pruning.walk import Reader
from amct_onnx.passes.recurrent import DATA, RECURRENCE


@dataclass(frozen=True)
class GateView:
    """A weight of an LSTM, GRU or RNN as ``gates = rows @ weight.T``, one direction after the other; never refitted.

    Attributes:
        node: the layer.
        index: which input the weight is: W, whose rows are inputs, or R, whose rows are states.
    """

    node: Node
    index: int

    @property
    def key(self) -> str:
        """Its name among others."""
        return f"{self.node.name}:{self.index}"

    @property
    def reads(self) -> tuple[str, ...]:
        """The tensor of its rows: inputs, or all states that come out."""
        tensor = self.node.outputs[0] if self.index == RECURRENCE else self.node.inputs[DATA]
        return (str(tensor.name),)

    @property
    def gives(self) -> str:
        """The same, since nothing is fitted to the gates."""
        return self.reads[0]

    @property
    def parts(self) -> int:
        """Directions."""
        return self._shape[0]

    @property
    def columns(self) -> int:
        """Inputs, or hidden units."""
        return self._shape[2]

    @property
    def _shape(self) -> tuple[int, ...]:
        weight = resolve_constant(self.node.inputs[self.index])
        if weight is None:
            raise TypeError(f"'{self.node.name}' has no constant weights")
        return tuple(int(size) for size in weight.shape)

    def weight(self, values: Array) -> Array:
        """[directions, gates, columns], as it is."""
        return values

    def of_inputs(self, own: LabelArray) -> LabelArray:
        """Labels of the columns of each direction: [directions, columns]."""
        return np.tile(own, (self.parts, 1))

    def rows(
        self, inputs: Mapping[str, Array], _results: Mapping[str, Array], rng: np.random.Generator
    ) -> tuple[Array, Array]:
        """Some rows, [rows, directions, columns], and no results."""
        x = inputs[self.reads[0]]
        # Inputs [steps, samples, columns] are the same for both directions; states have them as axis 1.
        states = x if self.index == RECURRENCE else np.broadcast_to(x[:, None], (len(x), self.parts, *x.shape[1:]))
        found = np.moveaxis(states, 1, 2).reshape(-1, self.parts, x.shape[-1])
        chosen = chosen_rows(len(found), rng)
        return found[chosen], np.zeros((len(chosen), self.parts, 0), np.float32)


def gate_view(reader: Reader) -> GateView | None:
    """The view of a weight of a recurrent layer that meets channels; None where none does, or states are not seen."""
    view = GateView(reader.node, reader.weight)
    if not spec_of(reader.node).gates or (view.index == RECURRENCE and reader.node.outputs[0].is_empty()):
        return None
    return view
