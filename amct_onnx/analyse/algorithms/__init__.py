"""Quantization algorithms as pure functions of arrays."""

from amct_onnx.analyse.algorithms.activation import ActivationAlgorithm, choose_activation
from amct_onnx.analyse.algorithms.uniform import Bounds
from amct_onnx.analyse.algorithms.weight import WeightAlgorithm, choose_weight

__all__ = ["ActivationAlgorithm", "Bounds", "WeightAlgorithm", "choose_activation", "choose_weight"]
