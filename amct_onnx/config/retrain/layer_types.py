"""Names of layer types: ONNX's, and those of PyTorch that AMCT's configs use."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from amct_onnx.config.retrain.facts import RetrainFacts, TrainableLayer


class LayerType(NamedTuple):
    """What a name stands for: ONNX operators, and the number of spatial dimensions where the name says it."""

    operators: tuple[str, ...]
    kernel_rank: int | None = None

    def holds(self, layer: TrainableLayer) -> bool:
        """Whether a layer is of this type."""
        return layer.op_type in self.operators and self.kernel_rank in (None, layer.kernel_rank)


PYTORCH_TYPES: Mapping[str, LayerType] = {
    **{f"Conv{rank}d": LayerType(("Conv",), rank) for rank in (1, 2, 3)},
    **{f"ConvTranspose{rank}d": LayerType(("ConvTranspose",), rank) for rank in (1, 2, 3)},
    "Linear": LayerType(("Gemm", "MatMul")),
    "AvgPool2d": LayerType(("AveragePool",), 2),
}


def layer_type(name: str, facts: RetrainFacts) -> LayerType | None:
    """What a name stands for; None where it is no type of layers."""
    return LayerType((name,)) if name in facts.layer_types else PYTORCH_TYPES.get(name)
