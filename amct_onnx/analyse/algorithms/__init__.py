"""Quantization algorithms as pure functions of arrays."""

from amct_onnx.analyse.algorithms.activation import ActivationAlgorithm, choose_activation
from amct_onnx.analyse.algorithms.uniform import Bounds

__all__ = ["ActivationAlgorithm", "Bounds", "choose_activation"]
