"""What resolving a retrain config asks of a model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from amct_onnx.config.facts import ModelFacts


@dataclass(frozen=True, kw_only=True)
class TrainableLayer:
    """One layer.

    Attributes:
        op_type: its ONNX operator.
        kernel_rank: spatial dimensions of its kernel; None for layers without one.
        stays: why none of its output channels may go; empty where some may.
        dense: why its weights cannot be thinned out; empty where they can.
        shares: the other layers whose channels go with its own.
        carriers: layers without channels of their own that its channels pass through.
        per_channel: whether its weights may have one scale per output channel.
    """

    op_type: str
    kernel_rank: int | None = None
    stays: str = ""
    dense: str = ""
    shares: tuple[str, ...] = ()
    carriers: tuple[str, ...] = ()
    per_channel: bool = False


@dataclass(frozen=True, kw_only=True)
class RetrainFacts:
    """One model.

    Attributes:
        layers: its layers by name, in graph order.
        nodes: the operator of every node, by name.
        layer_types: every operator whose layers can be quantized, in this model or in another.
        prunable_types: those among them that can be pruned.
        sparse_types: those among them whose weights can be thinned out.
        quantization: what of the model can be quantized, and how; None where that is not asked.
    """

    layers: Mapping[str, TrainableLayer]
    nodes: Mapping[str, str] = field(default_factory=dict)
    layer_types: tuple[str, ...] = ()
    prunable_types: tuple[str, ...] = ()
    sparse_types: tuple[str, ...] = ()
    quantization: ModelFacts | None = None
