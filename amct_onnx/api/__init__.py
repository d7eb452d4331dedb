"""Functions for programs: one call each, results in memory, nothing on disk unless asked."""

from amct_onnx.analyse.calibration_file import load_calibration, merge_calibrations, save_calibration
from amct_onnx.analyse.engine import Calibration
from amct_onnx.api.combine import CombinedResult, compress
from amct_onnx.api.compress import apply, quantize
from amct_onnx.api.configured import resolve_config
from amct_onnx.api.deploy_check import check_deploy
from amct_onnx.api.inspection import Inspection, NodeFacts, inspect
from amct_onnx.api.prune import prune, restore_pruned
from amct_onnx.api.prune_config import resolve_prune_config
from amct_onnx.api.prune_result import GroupSummary, PruneReport, PruneResult
from amct_onnx.api.result import CompressionResult, InputSummary, LayerSummary, Report, SavedFiles, TrialResult
from amct_onnx.api.sparse_result import SparseSummary, SparsifyReport, SparsifyResult
from amct_onnx.api.sparsify import restore_sparse, sparsify

__all__ = [
    "Calibration",
    "CombinedResult",
    "CompressionResult",
    "GroupSummary",
    "InputSummary",
    "Inspection",
    "LayerSummary",
    "NodeFacts",
    "PruneReport",
    "PruneResult",
    "Report",
    "SavedFiles",
    "SparseSummary",
    "SparsifyReport",
    "SparsifyResult",
    "TrialResult",
    "apply",
    "check_deploy",
    "compress",
    "inspect",
    "load_calibration",
    "merge_calibrations",
    "prune",
    "quantize",
    "resolve_config",
    "resolve_prune_config",
    "restore_pruned",
    "restore_sparse",
    "save_calibration",
    "sparsify",
]
