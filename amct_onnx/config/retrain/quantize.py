"""What a retrain config says of quantization, as a quantization config: what training would learn begins there."""

from __future__ import annotations

from dataclasses import replace

from amct_onnx.config.facts import ConfigurableLayer, ModelFacts
from amct_onnx.config.limits import Limit
from amct_onnx.config.options import (
    ActivationAlgorithm,
    ActivationOptions,
    LayerOptions,
    WeightAlgorithm,
    WeightOptions,
)
from amct_onnx.config.quant_config import LayerConfig, QuantConfig
from amct_onnx.config.request import WEIGHT_BITS
from amct_onnx.config.retrain.options import DataQuant, WeightQuant
from amct_onnx.config.retrain.plan import LayerRetrain, RetrainConfig
from amct_onnx.config.retrain.widths import width_limit
from amct_onnx.findings import Finding, Severity

_UNKNOWN = "the retrain config was resolved for a model without it"


def quantization_of(config: RetrainConfig, facts: ModelFacts) -> QuantConfig:
    """The quantization config for a model, pruned or not, that a retrain config was resolved for.

    Bounds are those of ``clip_max_min``, or else where IFMR puts them; ``arq_retrain`` scales weights by their largest
    value, ``ulq_retrain`` by what is left of the error once the scale is searched.

    Args:
        config: the retrain config.
        facts: of the model that is quantized.
    """
    asked = {name: (layer, config.layers.get(name)) for name, layer in facts.layers.items()}
    limited = {name: limit for name, (layer, of) in asked.items() if (limit := _limit(layer, of))}
    return QuantConfig(
        layers={name: _layer(layer, of, limited.get(name)) for name, (layer, of) in asked.items()},
        warnings=tuple(_lost_width(name, limit) for name, limit in limited.items()),
        batch_num=config.batch_num,
        force_fp16_quant=config.force_fp16_quant,
        source=config.source,
    )


def _limit(layer: ConfigurableLayer, asked: LayerRetrain | None) -> Limit | None:
    """Why a layer cannot have the width of weights that it could have before channels went."""
    if asked is None or asked.weight is None or not layer.has_weight:
        return None
    return width_limit(layer, WEIGHT_BITS, asked.weight.bits)


def _lost_width(name: str, limit: Limit) -> Finding:
    message = (
        f"{limit.setting.stands_for} is not possible once channels are gone: {limit.reason}; it gets {limit.instead}"
    )
    return Finding(None, name, message, Severity.WARNING)


def _layer(layer: ConfigurableLayer, asked: LayerRetrain | None, limit: Limit | None) -> LayerConfig:
    reason = _UNKNOWN if asked is None else asked.why_float
    data = None if asked is None else asked.data
    weight = None if asked is None else asked.weight
    if weight is not None and limit is not None:
        weight = replace(weight, bits=8)
    options = LayerOptions(
        activation=_activation(data or DataQuant(), layer), weight=_weight(weight, layer), migration_strength=None
    )
    return LayerConfig(op_type=layer.op_type, options=options, enabled=not reason, reason=reason)


def _activation(data: DataQuant, layer: ConfigurableLayer) -> ActivationOptions:
    is_given = data.clip_max is not None and data.clip_min is not None
    return ActivationOptions(
        algorithm=ActivationAlgorithm.IFMR,
        bits=data.bits,
        symmetric=not layer.asymmetric,
        clip=(float(data.clip_min or 0.0), float(data.clip_max or 0.0)) if is_given else None,
        fixed_min=bool(data.fixed_min),
    )


def _weight(weight: WeightQuant | None, layer: ConfigurableLayer) -> WeightOptions:
    if weight is None:
        return WeightOptions(algorithm=WeightAlgorithm.ARQ, per_channel=layer.per_channel)
    searched = weight.algorithm == "ulq_retrain"
    return WeightOptions(
        algorithm=WeightAlgorithm.MSE if searched else WeightAlgorithm.ARQ,
        bits=weight.bits,
        per_channel=weight.channel_wise,
    )
