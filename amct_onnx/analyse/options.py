"""What a caller may choose about a plan."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from amct_onnx.config import ActivationAlgorithm, LayerOptions, TensorOptions


@dataclass(frozen=True, kw_only=True)
class PlanOptions:
    """Choices that end up resolved in the plan.

    Attributes:
        default: choices for layers that `layers` does not name, and for what only the QDQ form quantizes.
        layers: layer name -> its own choices.
        skip: layers to leave float -> why.
        skip_types: types of which no product of two computed tensors is quantized; other layers are in `skip`.
        gemm_per_channel: one weight scale per output channel for Gemm and MatMul, too, where a layer does not say.
        reduce_range: use half the integer range for weights, chosen by ARQ (see ``--reduce-range``).
        qdq_tensors: also plan what only the QDQ form quantizes.
        for_ascend: leave float what the ascend form cannot hold.
        feeds: how many feeds to calibrate with, which the data must hold; None for all it holds.
        tensors: inputs of nodes to quantize besides the layers.
        matmul_inputs: quantize both inputs of products of two computed tensors, as layers of their own.
        force_fp16: round activation scales to float16 precision, for devices that compute in float16.
    """

    default: LayerOptions = field(default_factory=LayerOptions)
    layers: Mapping[str, LayerOptions] = field(default_factory=dict)
    skip: Mapping[str, str] = field(default_factory=dict)
    skip_types: tuple[str, ...] = ()
    gemm_per_channel: bool = False
    reduce_range: bool = False
    qdq_tensors: bool = True
    for_ascend: bool = True
    feeds: int | None = None
    tensors: tuple[TensorOptions, ...] = ()
    matmul_inputs: bool = False
    force_fp16: bool = False

    def of(self, layer: str) -> LayerOptions:
        """The choices for one layer."""
        return self.layers.get(layer, self.default)

    @property
    def needs_values(self) -> bool:
        """Whether any range is chosen by more than the extremes."""
        algorithms = {options.activation.algorithm for options in (self.default, *self.layers.values())}
        algorithms |= {entry.activation.algorithm for entry in self.tensors}
        return algorithms != {ActivationAlgorithm.MINMAX}
