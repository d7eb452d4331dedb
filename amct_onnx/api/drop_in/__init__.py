"""AMCT's functions under their own names: a user's own loop calibrates the model.

Order of use: :func:`create_quant_config`; with balancing :func:`quantize_preprocess` and runs of its model;
:func:`quantize_model` and ``batch_num`` runs of its model under ``amct_onnx.AMCT_SO``; :func:`save_model`. For pruning:
:func:`auto_channel_prune_search` for a config, :func:`create_prune_retrain_model`, training elsewhere,
:func:`save_prune_retrain_model`. For configs of training: :func:`create_quant_retrain_config`,
:func:`create_quant_retrain_model`, :func:`save_quant_retrain_model`; for everything at once
:func:`create_compressed_retrain_model` and :func:`save_compressed_retrain_model`. What was trained elsewhere comes
back by ``restore_..._retrain_model``.
"""

from amct_onnx.api.drop_in.compressed import (
    create_compressed_retrain_model,
    restore_compressed_retrain_model,
    save_compressed_retrain_model,
)
from amct_onnx.api.drop_in.config import create_quant_config
from amct_onnx.api.drop_in.prepare import quantize_model, quantize_preprocess
from amct_onnx.api.drop_in.prune import (
    create_prune_retrain_model,
    restore_prune_retrain_model,
    save_prune_retrain_model,
)
from amct_onnx.api.drop_in.prune_search import auto_channel_prune_search
from amct_onnx.api.drop_in.quant_retrain import (
    create_quant_retrain_config,
    create_quant_retrain_model,
    restore_quant_retrain_model,
    save_quant_retrain_model,
)
from amct_onnx.api.drop_in.save import save_model
from amct_onnx.api.drop_in.session import amct_session_options

__all__ = [
    "amct_session_options",
    "auto_channel_prune_search",
    "create_compressed_retrain_model",
    "create_prune_retrain_model",
    "create_quant_config",
    "create_quant_retrain_config",
    "create_quant_retrain_model",
    "quantize_model",
    "quantize_preprocess",
    "restore_compressed_retrain_model",
    "restore_prune_retrain_model",
    "restore_quant_retrain_model",
    "save_compressed_retrain_model",
    "save_model",
    "save_prune_retrain_model",
    "save_quant_retrain_model",
]
