"""What a retrain config says of quantization, as a quantization config: what training would learn begins there."""

from __future__ import annotations

from amct_onnx.config.facts import ConfigurableLayer, ModelFacts
from amct_onnx.config.options import (
    ActivationAlgorithm,
    ActivationOptions,
    LayerOptions,
    WeightAlgorithm,
    WeightOptions,
)
from amct_onnx.config.quant_config import LayerConfig, QuantConfig
from amct_onnx.config.retrain.options import DataQuant, WeightQuant
from amct_onnx.config.retrain.plan import LayerRetrain, RetrainConfig

_UNKNOWN = "the retrain config was resolved for a model without it"


def quantization_of(config: RetrainConfig, facts: ModelFacts) -> QuantConfig:
    """The quantization config for a model, pruned or not, that a retrain config was resolved for.

    Bounds are those of ``clip_max_min``, or else where IFMR puts them; ``arq_retrain`` scales weights by their largest
    value, ``ulq_retrain`` by what is left of the error once the scale is searched.

    Args:
        config: the retrain config.
        facts: of the model that is quantized.
    """
    return QuantConfig(
        layers={name: _layer(layer, config.layers.get(name)) for name, layer in facts.layers.items()},
        batch_num=config.batch_num,
        force_fp16_quant=config.force_fp16_quant,
        source=config.source,
    )


def _layer(layer: ConfigurableLayer, asked: LayerRetrain | None) -> LayerConfig:
    reason = _UNKNOWN if asked is None else asked.why_float
    data = None if asked is None else asked.data
    weight = None if asked is None else asked.weight
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
