"""amct_onnx: quantize and prune ONNX models after export."""

from amct_onnx.analyse.algorithms import ActivationAlgorithm, WeightAlgorithm
from amct_onnx.api import CompressionResult, Inspection, Report, apply, inspect, quantize
from amct_onnx.errors import (
    AmctError,
    ConfigError,
    DataError,
    ModelError,
    NothingToCompressError,
    RecordError,
    UsageError,
)
from amct_onnx.passes.insert_qdq import QdqTarget
from amct_onnx.rewrite import OutputForm

__version__ = "0.1.0"

__all__ = [
    "ActivationAlgorithm",
    "AmctError",
    "CompressionResult",
    "ConfigError",
    "DataError",
    "Inspection",
    "ModelError",
    "NothingToCompressError",
    "OutputForm",
    "QdqTarget",
    "RecordError",
    "Report",
    "UsageError",
    "WeightAlgorithm",
    "apply",
    "inspect",
    "quantize",
]
