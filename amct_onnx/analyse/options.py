"""What a caller may choose about a plan."""

from __future__ import annotations

from dataclasses import dataclass

from amct_onnx.analyse.algorithms import ActivationAlgorithm, WeightAlgorithm


@dataclass(frozen=True, kw_only=True)
class PlanOptions:
    """Choices that end up resolved in the plan.

    Attributes:
        act: how activation ranges are chosen.
        weights: how weight scales are chosen.
        symmetric: activations without zero point.
        skip: layers to leave float.
        gemm_per_channel: one weight scale per output channel for Gemm and MatMul, too.
        reduce_range: use half the integer range for weights, chosen by ARQ (see ``--reduce-range``).
        qdq_tensors: also plan what only the QDQ form quantizes.
    """

    act: ActivationAlgorithm = ActivationAlgorithm.MSE
    weights: WeightAlgorithm = WeightAlgorithm.MSE
    symmetric: bool = False
    skip: tuple[str, ...] = ()
    gemm_per_channel: bool = False
    reduce_range: bool = False
    qdq_tensors: bool = True
