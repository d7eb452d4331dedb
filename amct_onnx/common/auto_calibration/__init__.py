"""The base class of evaluators, where scripts for AMCT import it from."""

from amct_onnx.api.evaluator import AutoCalibrationEvaluatorBase

__all__ = ["AutoCalibrationEvaluatorBase"]
