"""Quantization algorithms as pure functions of arrays."""

from amct_onnx.analyse.algorithms.activation import choose_activation
from amct_onnx.analyse.algorithms.uniform import Bounds
from amct_onnx.analyse.algorithms.weight import choose_weight

__all__ = ["Bounds", "choose_activation", "choose_weight"]
