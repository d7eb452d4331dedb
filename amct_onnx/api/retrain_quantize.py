"""A float model quantized as a retrain config says, without training."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from onnx import ModelProto

from amct_onnx.analyse.configurable import model_facts
from amct_onnx.analyse.fitting.data import FittingData
from amct_onnx.api.compress import quantize_read
from amct_onnx.api.result import CompressionResult, Report
from amct_onnx.config.retrain import RetrainConfig
from amct_onnx.config.retrain.quantize import quantization_of
from amct_onnx.passes.insert_qdq import QdqTarget
from amct_onnx.record import Record, RecordHeader
from amct_onnx.rewrite import OutputForm, prepare


def quantize_as_configured(
    proto: ModelProto,
    base_dir: Path | None,
    config: RetrainConfig,
    given: FittingData,
    forms: Collection[OutputForm],
    target: QdqTarget = QdqTarget.ONNXRUNTIME,
) -> CompressionResult:
    """The model quantized; :func:`unquantized` where the config quantizes no layer.

    Args:
        proto: the model, pruned or not, that the config was resolved for.
        base_dir: folder of its external weights.
        config: the config.
        given: the feeds.
        forms: which forms to make.
        target: runtime that the QDQ model is for.

    Raises:
        NothingToCompressError: none of the layers can be quantized, as the model or the data are.
    """
    if not config.quantized():
        return unquantized()
    facts = model_facts(prepare(proto, base_dir).model)
    return quantize_read(
        proto,
        base_dir,
        given.data,
        config=quantization_of(config, facts),
        forms=forms,
        target=target,
        progress=given.progress,
    )


def unquantized() -> CompressionResult:
    """What is there when no layer is quantized: no models, and an empty plan."""
    return CompressionResult(Record(), Record(header=RecordHeader()), {}, Report((), (), 0, 0))
