"""A config resolved against a model: every setting of every layer, and where it came from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from amct_onnx.config.options import LayerOptions, TensorOptions
from amct_onnx.errors import ConfigError
from amct_onnx.findings import Finding


@dataclass(frozen=True, kw_only=True)
class LayerConfig:
    """One layer.

    Attributes:
        op_type: its ONNX operator.
        options: how it is quantized.
        enabled: whether it is.
        reason: why not.
        origins: setting -> where it came from.
    """

    op_type: str
    options: LayerOptions
    enabled: bool = True
    reason: str = field(default="", compare=False)
    origins: Mapping[str, str] = field(default_factory=dict, compare=False, repr=False)


@dataclass(frozen=True, kw_only=True)
class QuantConfig:
    """Everything that a config says about quantizing one model; nothing in it is optional or inherited any more.

    Attributes:
        layers: every layer that can be quantized, by name, in graph order.
        tensors: inputs of nodes to quantize besides.
        batch_num: number of calibration feeds.
        activation_offset: whether activations have a zero point where nothing else is said.
        joint_quant: read and written, without effect.
        do_fusion: whether layers take in the BatchNormalization behind them.
        force_fp16_quant: whether activation scales are rounded to float16.
        skip_fusion_layers: layers that do not.
        skip_layers: nodes that are named as to be skipped, be they in `layers` or not.
        skip_types: types of layers that are.
        default: how a layer is quantized of which nothing is said.
        origins: global setting -> where it came from.
        source: the file.
        warnings: what reading and resolving found.
    """

    layers: Mapping[str, LayerConfig]
    tensors: tuple[TensorOptions, ...] = ()
    batch_num: int = 1
    activation_offset: bool = True
    joint_quant: bool = False
    do_fusion: bool = True
    force_fp16_quant: bool = False
    skip_fusion_layers: tuple[str, ...] = ()
    skip_layers: tuple[str, ...] = field(default=(), compare=False)
    skip_types: tuple[str, ...] = field(default=(), compare=False)
    default: LayerOptions = field(default_factory=LayerOptions, compare=False)
    origins: Mapping[str, str] = field(default_factory=dict, compare=False, repr=False)
    source: str = field(default="", compare=False)
    warnings: tuple[Finding, ...] = field(default=(), compare=False)

    def enabled(self) -> dict[str, LayerOptions]:
        """The layers to quantize, by name."""
        return {name: layer.options for name, layer in self.layers.items() if layer.enabled}

    def balanced(self) -> dict[str, float]:
        """The layers to balance (DMQ) with their migration strengths; raises :class:`ConfigError` if there is none."""
        strengths = {name: options.migration_strength for name, options in self.enabled().items()}
        found = {name: strength for name, strength in strengths.items() if strength is not None}
        if not found:
            raise ConfigError(
                f"{self.source} asks to balance no layer; add dmq_balancer to a block of the simple config, or "
                "dmq_balancer_param to a layer of the JSON config"
            )
        return found
