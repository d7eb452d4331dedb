"""Quantization algorithms as pure functions of arrays."""

from amct_onnx.analyse.algorithms.activation import ActivationAlgorithm, Bounds, choose_activation

__all__ = ["ActivationAlgorithm", "Bounds", "choose_activation"]
