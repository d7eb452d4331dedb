"""amct_onnx: quantize and prune ONNX models after export."""

from amct_onnx.analyse.bin_feeds import BinFeeds
from amct_onnx.analyse.image_feeds import Color, ImageFeeds, ImageOptions, Layout
from amct_onnx.api import (
    Calibration,
    CompressionResult,
    Inspection,
    Report,
    apply,
    check_deploy,
    inspect,
    load_calibration,
    merge_calibrations,
    quantize,
    resolve_config,
    save_calibration,
)
from amct_onnx.config import ActivationAlgorithm, QuantConfig, WeightAlgorithm
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
    "BinFeeds",
    "Calibration",
    "Color",
    "CompressionResult",
    "ConfigError",
    "DataError",
    "ImageFeeds",
    "ImageOptions",
    "Inspection",
    "Layout",
    "ModelError",
    "NothingToCompressError",
    "OutputForm",
    "QdqTarget",
    "QuantConfig",
    "RecordError",
    "Report",
    "UsageError",
    "WeightAlgorithm",
    "apply",
    "check_deploy",
    "inspect",
    "load_calibration",
    "merge_calibrations",
    "quantize",
    "resolve_config",
    "save_calibration",
]
