"""AMCT's configs of quantization-aware training and pruning: simple (``AMCTRetrainConfig``), and in JSON.

:func:`load_retrain_request` reads one, :func:`resolve_retrain` fits it to the facts about a model.
"""

from amct_onnx.config.retrain.facts import RetrainFacts, TrainableLayer
from amct_onnx.config.retrain.flows import Flow
from amct_onnx.config.retrain.json_write import format_retrain_json
from amct_onnx.config.retrain.load import is_retrain_config, load_retrain_request, parse_retrain_request
from amct_onnx.config.retrain.options import DataQuant, FilterPruning, SelectivePruning, WeightQuant
from amct_onnx.config.retrain.plan import LayerRetrain, RetrainConfig
from amct_onnx.config.retrain.request import RetrainRequest
from amct_onnx.config.retrain.resolve import resolve_retrain

__all__ = [
    "DataQuant",
    "FilterPruning",
    "Flow",
    "LayerRetrain",
    "RetrainConfig",
    "RetrainFacts",
    "RetrainRequest",
    "SelectivePruning",
    "TrainableLayer",
    "WeightQuant",
    "format_retrain_json",
    "is_retrain_config",
    "load_retrain_request",
    "parse_retrain_request",
    "resolve_retrain",
]
