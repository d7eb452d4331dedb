"""What a user may choose about each layer, and the files in which AMCT users write it down."""

from amct_onnx.config.options import (
    ActivationAlgorithm,
    ActivationOptions,
    LayerOptions,
    TensorOptions,
    WeightAlgorithm,
    WeightOptions,
)

__all__ = [
    "ActivationAlgorithm",
    "ActivationOptions",
    "LayerOptions",
    "TensorOptions",
    "WeightAlgorithm",
    "WeightOptions",
]
