"""Functions for programs: one call each, results in memory, nothing on disk unless asked."""

from amct_onnx.api.compress import apply, quantize
from amct_onnx.api.inspection import Inspection, NodeFacts, inspect
from amct_onnx.api.result import CompressionResult, LayerSummary, Report, TrialResult

__all__ = [
    "CompressionResult",
    "Inspection",
    "LayerSummary",
    "NodeFacts",
    "Report",
    "TrialResult",
    "apply",
    "inspect",
    "quantize",
]
