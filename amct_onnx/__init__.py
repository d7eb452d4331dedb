"""amct_onnx: quantize, prune and thin out ONNX models after export."""

from typing import TYPE_CHECKING

from amct_onnx.analyse.bin_feeds import BinFeeds
from amct_onnx.analyse.image_feeds import Color, ImageFeeds, ImageOptions, Layout
from amct_onnx.analyse.pruning.channel_sensitivity import ChannelGroup, ChannelSensitivity
from amct_onnx.api import (
    Calibration,
    CombinedResult,
    CompressionResult,
    Inspection,
    PruneReport,
    PruneResult,
    Report,
    SparsifyReport,
    SparsifyResult,
    apply,
    check_deploy,
    compress,
    inspect,
    load_calibration,
    merge_calibrations,
    prune,
    quantize,
    resolve_config,
    resolve_prune_config,
    restore_pruned,
    restore_sparse,
    save_calibration,
    sparsify,
)
from amct_onnx.api.drop_in import (
    amct_session_options,
    auto_channel_prune_search,
    create_compressed_retrain_model,
    create_prune_retrain_model,
    create_quant_config,
    create_quant_retrain_config,
    create_quant_retrain_model,
    quantize_model,
    quantize_preprocess,
    restore_compressed_retrain_model,
    restore_prune_retrain_model,
    restore_quant_retrain_model,
    save_compressed_retrain_model,
    save_model,
    save_prune_retrain_model,
    save_quant_retrain_model,
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

if TYPE_CHECKING:
    from onnxruntime import SessionOptions

    AMCT_SO: SessionOptions


def __getattr__(name: str) -> object:
    """``AMCT_SO`` is made when it is first asked for, since only then is onnxruntime-extensions needed."""
    if name == "AMCT_SO":
        return amct_session_options()
    raise AttributeError(f"module 'amct_onnx' has no attribute '{name}'")


__all__ = [
    "ActivationAlgorithm",
    "AmctError",
    "BinFeeds",
    "Calibration",
    "ChannelGroup",
    "ChannelSensitivity",
    "Color",
    "CombinedResult",
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
    "PruneReport",
    "PruneResult",
    "QdqTarget",
    "QuantConfig",
    "RecordError",
    "Report",
    "SparsifyReport",
    "SparsifyResult",
    "UsageError",
    "WeightAlgorithm",
    "apply",
    "auto_channel_prune_search",
    "check_deploy",
    "compress",
    "create_compressed_retrain_model",
    "create_prune_retrain_model",
    "create_quant_config",
    "create_quant_retrain_config",
    "create_quant_retrain_model",
    "inspect",
    "load_calibration",
    "merge_calibrations",
    "prune",
    "quantize",
    "quantize_model",
    "quantize_preprocess",
    "resolve_config",
    "resolve_prune_config",
    "restore_compressed_retrain_model",
    "restore_prune_retrain_model",
    "restore_pruned",
    "restore_quant_retrain_model",
    "restore_sparse",
    "save_calibration",
    "save_compressed_retrain_model",
    "save_model",
    "save_prune_retrain_model",
    "save_quant_retrain_model",
    "sparsify",
]
