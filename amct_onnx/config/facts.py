"""What resolving a config asks of a model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, kw_only=True)
class ConfigurableLayer:
    """One layer that can be quantized, and what may be asked for it.

    Attributes:
        name: its name.
        op_type: its ONNX operator.
        kernel_rank: spatial dimensions of its kernel; None for layers without one.
        channels_in: input channels over all groups; None when it has no weights.
        group: number of groups.
        has_weight: whether it has weights.
        per_channel: whether its weights may have one scale per output channel, which is then the default.
        asymmetric: whether its activations may have a zero point.
        activation_bits: widths of activations that it may have.
        weight_bits: widths of weights that layers of its type may have.
        learned_rounding: whether AMCT learns the rounding of its weights (ADA).
        balance: whether DMQ may balance it.
    """

    name: str
    op_type: str
    kernel_rank: int | None = None
    channels_in: int | None = None
    group: int = 1
    has_weight: bool = True
    per_channel: bool = False
    asymmetric: bool = True
    activation_bits: frozenset[int] = frozenset({8})
    weight_bits: frozenset[int] = frozenset({8})
    learned_rounding: bool = False
    balance: bool = False


@dataclass(frozen=True, kw_only=True)
class QuantizableInputs:
    """A node whose inputs can be quantized to move less data: its operator, and how many inputs it has."""

    op_type: str
    count: int


@dataclass(frozen=True, kw_only=True)
class ModelFacts:
    """One model.

    Attributes:
        layers: the layers that can be quantized, by name, in graph order.
        refused: layers of a quantizable type that cannot be, and why, by name.
        nodes: the operator of every node, by name.
        inputs: the nodes that ``tensor_quantize`` may name.
        layer_types: every operator whose layers can be quantized, in this model or in another.
        input_types: every operator that ``tensor_quantize`` may name.
        fusing_types: every operator that takes in what follows it.
    """

    layers: Mapping[str, ConfigurableLayer]
    refused: Mapping[str, str] = field(default_factory=dict)
    nodes: Mapping[str, str] = field(default_factory=dict)
    inputs: Mapping[str, QuantizableInputs] = field(default_factory=dict)
    layer_types: tuple[str, ...] = ()
    input_types: tuple[str, ...] = ()
    fusing_types: tuple[str, ...] = ()
