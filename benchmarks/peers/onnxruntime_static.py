"""onnxruntime's own static quantizer: QDQ, uint8 activations, int8 weights per channel, min-max.

It is used as its guide asks: the model goes through its pre-processing first (symbolic shape inference is left out; it
needs another package and only feeds optional fusions). Per-channel DequantizeLinear exists from opset 13 on, and the
quantizer does not raise the opset of older models by itself, so they are converted here; without this its output does
not load.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import onnx
from onnx import version_converter
from onnxruntime.quantization import (
    CalibrationDataReader,
    CalibrationMethod,
    QuantFormat,
    QuantType,
    quantize_static,
)
from onnxruntime.quantization.shape_inference import quant_pre_process

from benchmarks.workloads.base import Feed

MAIN_OPERATORS = ("Conv", "MatMul", "Gemm")
LEAST_OPSET = 13


class FeedReader(CalibrationDataReader):
    """Hand out the feeds one by one."""

    def __init__(self, feeds: list[Feed]) -> None:
        self._feeds: Iterator[Feed] = iter(feeds)

    def get_next(self) -> Feed | None:
        """Return the next feed, or None at the end."""
        return next(self._feeds, None)


def quantize(model_path: Path, feeds: list[Feed], output: Path, operators: tuple[str, ...] | None = None) -> Path:
    """Quantize the model into ``output``; ``operators`` limits the kinds of nodes, None takes all it knows."""
    with tempfile.TemporaryDirectory() as folder:
        prepared = _prepare(model_path, Path(folder))
        quantize_static(
            prepared,
            output,
            FeedReader(feeds),
            quant_format=QuantFormat.QDQ,
            op_types_to_quantize=list(operators) if operators else None,
            per_channel=True,
            activation_type=QuantType.QUInt8,
            weight_type=QuantType.QInt8,
            calibrate_method=CalibrationMethod.MinMax,
        )
    return output


def _prepare(model_path: Path, folder: Path) -> Path:
    """Raise the opset where it must be, then run the quantizer's own pre-processing."""
    model = onnx.load(model_path)
    opset = next(entry.version for entry in model.opset_import if entry.domain in ("", "ai.onnx"))
    source = model_path
    if opset < LEAST_OPSET:
        source = folder / "converted.onnx"
        onnx.save(version_converter.convert_version(model, LEAST_OPSET), source)
    prepared = folder / "prepared.onnx"
    quant_pre_process(source, prepared, skip_symbolic_shape=True)
    return prepared
