"""What zeros among the weights save: of every layer their share of its multiply-adds."""

from __future__ import annotations

from collections.abc import Mapping

from amct_onnx.analyse.cost import Shapes, graph_cost, layer_multiply_adds
from amct_onnx.graph import Model


class ZeroSavings:
    """Multiply-adds of one sample that a model with zeros among its weights need not do.

    Attributes:
        layers: layer -> its multiply-adds; 0 where its sizes are not known.
        total: of the whole model, of branches the dearest, of loops one run.
    """

    def __init__(self, model: Model, shapes: Shapes) -> None:
        """Count them while tensors have the names of the source.

        Args:
            model: the model; its weights may change later.
            shapes: sizes of its tensors.
        """
        self._graph = model.graph
        self.layers = {str(node.name): layer_multiply_adds(node, shapes) for node in model.nodes()}
        self.total = self._left({})

    def of(self, zeros: Mapping[str, float]) -> float:
        """What is saved.

        Args:
            zeros: layer -> share of its weights that are zero.
        """
        return self.total - self._left(zeros)

    def share(self, zeros: Mapping[str, float]) -> float | None:
        """The same as a share of the whole; None where no sizes are known."""
        return self.of(zeros) / self.total if self.total else None

    def _left(self, zeros: Mapping[str, float]) -> float:
        left = {name: count * (1 - zeros.get(name, 0.0)) for name, count in self.layers.items()}
        return graph_cost(self._graph, lambda node: left.get(str(node.name), 0.0))
