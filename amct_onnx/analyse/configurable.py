"""Between configs and models: what a config's rules ask of a model, and what planning asks of a config."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from amct_onnx.analyse.options import PlanOptions
from amct_onnx.config import (
    ActivationOptions,
    ConfigurableLayer,
    LayerOptions,
    ModelFacts,
    QuantConfig,
    QuantizableInputs,
    TensorOptions,
)
from amct_onnx.graph import Model
from amct_onnx.graph.op_table import OPS, spec_of
from amct_onnx.passes.locate import Layer, locate_layers
from amct_onnx.passes.recurrent import RecurrentLayer


def model_facts(model: Model) -> ModelFacts:
    """The facts about a model, named and fused."""
    survey = locate_layers(model)
    nodes = [node for graph in model.graphs() for node in graph.nodes]
    return ModelFacts(
        layers={layer.name: _configurable(layer) for layer in survey.all_layers},
        refused={refusal.node: refusal.reason for refusal in survey.refusals},
        nodes={node.name: node.op for node in nodes},
        inputs={
            node.name: QuantizableInputs(op_type=node.op, count=len(node.inputs))
            for node in model.graph.nodes
            if spec_of(node).quantizable_inputs
        },
        layer_types=tuple(name for name, spec in OPS.items() if spec.has_record),
        input_types=tuple(name for name, spec in OPS.items() if spec.quantizable_inputs),
        fusing_types=tuple(name for name, spec in OPS.items() if spec.config.fuses),
    )


def plan_options(config: QuantConfig, *, symmetric: bool = False) -> PlanOptions:
    """The choices of a config for the planner; ``symmetric`` for a target that has no zero points."""
    layers = config.enabled()
    return PlanOptions(
        default=_symmetric(config.default) if symmetric else config.default,
        layers={name: _symmetric(options) if symmetric else options for name, options in layers.items()},
        skip=_left_float(config),
        skip_types=config.skip_types,
        feeds=config.batch_num,
        tensors=tuple(_symmetric_input(entry) for entry in config.tensors) if symmetric else config.tensors,
        force_fp16=config.force_fp16_quant,
    )


def _left_float(config: QuantConfig) -> dict[str, str]:
    """The layers that a config leaves float -> why, with the line where there is one."""
    named = dict.fromkeys(config.skip_layers, "skip_layers names it")
    idle = {name: layer.reason or "not enabled" for name, layer in config.layers.items() if not layer.enabled}
    return {name: f"the config leaves it float: {why}" for name, why in {**named, **idle}.items()}


def within_limits(options: PlanOptions, layers: Iterable[Layer]) -> PlanOptions:
    """The choices with what no device can do taken out: a zero point for layers that work without one only."""
    limited = {layer.name: _symmetric(options.of(layer.name)) for layer in layers if is_limited(layer)}
    return replace(options, layers={**options.layers, **limited}) if limited else options


def _symmetric(options: LayerOptions) -> LayerOptions:
    activation: ActivationOptions = replace(options.activation, symmetric=True)
    return replace(options, activation=activation)


def _symmetric_input(entry: TensorOptions) -> TensorOptions:
    return replace(entry, activation=replace(entry.activation, symmetric=True))


def is_limited(layer: Layer) -> bool:
    """Whether devices compute the layer on 8 bits without zero point only."""
    return _kernel_rank(layer) in layer.spec.config.limited


def _configurable(layer: Layer | RecurrentLayer) -> ConfigurableLayer:
    if isinstance(layer, RecurrentLayer):
        return ConfigurableLayer(
            name=layer.name,
            op_type=layer.op_type,
            has_weight=True,
            per_channel=layer.spec.per_channel,
            activation_bits=layer.spec.act_bits,
            weight_bits=layer.spec.weight_bits,
            balance=False,
        )
    facts, rank, limited = layer.spec.config, _kernel_rank(layer), is_limited(layer)
    return ConfigurableLayer(
        name=layer.name,
        op_type=layer.op_type,
        kernel_rank=rank,
        channels_in=layer.channels_in,
        group=int(layer.node.attrs.get("group", 1)),
        has_weight=layer.weight is not None,
        per_channel=layer.spec.per_channel,
        asymmetric=not limited,
        activation_bits=frozenset({8}) if limited else layer.spec.act_bits,
        weight_bits=layer.spec.weight_bits,
        learned_rounding=rank in facts.learned,
        balance=layer.weight is not None,
    )


def _kernel_rank(layer: Layer) -> int | None:
    """Spatial dimensions of the kernel; an attribute gives them where there is no weight."""
    if not layer.spec.config.has_kernel:
        return None
    return len(layer.node.attrs["kernel_shape"]) if layer.weight is None else len(layer.weight.shape) - 2
