"""What a user may choose about each layer, and the files in which AMCT users write it down.

:func:`load_request` reads a simple config (.cfg) or a JSON config, :func:`resolve` fits it to the facts about a model,
:func:`format_json` writes the result.
"""

from amct_onnx.config.facts import ConfigurableLayer, ModelFacts, QuantizableInputs
from amct_onnx.config.json_write import format_json
from amct_onnx.config.load import arguments_request, load_request, parse_request
from amct_onnx.config.options import (
    ActivationAlgorithm,
    ActivationOptions,
    LayerOptions,
    TensorOptions,
    WeightAlgorithm,
    WeightOptions,
)
from amct_onnx.config.quant_config import LayerConfig, QuantConfig
from amct_onnx.config.request import Request
from amct_onnx.config.resolve import resolve

__all__ = [
    "ActivationAlgorithm",
    "ActivationOptions",
    "ConfigurableLayer",
    "LayerConfig",
    "LayerOptions",
    "ModelFacts",
    "QuantConfig",
    "QuantizableInputs",
    "Request",
    "TensorOptions",
    "WeightAlgorithm",
    "WeightOptions",
    "arguments_request",
    "format_json",
    "load_request",
    "parse_request",
    "resolve",
]
