"""What becomes of a model: compressed, left alone, refused or failed, told by running every form that is made."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
from onnx import ModelProto

import amct_onnx
from amct_onnx.errors import AmctError, NothingToCompressError
from amct_onnx.runtime.simulator import MINIMUM_OPSET, integer_model

FORMS = ("fake_quant", "qdq", "ascend")
LEAST_DB = 10.0
"""Below this an output is looked at by a person: 8 bits on data of a few values can be that bad, seldom worse."""

Feed = dict[str, np.ndarray]


@dataclass(frozen=True)
class Outcome:
    """One word for what happened, the runtime's or our own words, and how many layers were and were not quantized."""

    word: str
    detail: str = ""
    layers: int = 0
    refused: int = 0


def outcome_of(model: ModelProto | Path, feeds: Sequence[Feed]) -> Outcome:
    """Quantize a model on `feeds` and run what comes out; external weights only of a model that is a file."""
    try:
        wanted = [run(model, feed) for feed in feeds]
    except Exception as error:  # the float model is the runtime's affair
        return Outcome("not run by onnxruntime", first_line(error))
    if not feeds:
        return Outcome("without tensor data")
    try:
        result = amct_onnx.quantize(model, feeds, formats=FORMS, trial=False)
    except NothingToCompressError as error:
        return Outcome("left alone", first_line(error))
    except AmctError as error:
        return Outcome("refused", first_line(error))
    except Exception as error:
        return Outcome("failed", f"{type(error).__name__}: {first_line(error)}")
    word, detail = _tried(result, model, feeds, wanted)
    return Outcome(word, detail, len(result.report.layers), len(result.report.refusals))


def _tried(
    result: amct_onnx.CompressionResult, model: ModelProto | Path, feeds: Sequence[Feed], wanted: list[list[Any]]
) -> tuple[str, str]:
    opset = max((entry.version for entry in result.model("ascend").opset_import if not entry.domain), default=0)
    forms = ("fake_quant", "qdq", "simulator") if opset >= MINIMUM_OPSET else ("fake_quant", "qdq")
    for form in forms:
        try:
            made = integer_model(result.model("ascend")) if form == "simulator" else result.model(form)
            fault = _fault(made, model, feeds, wanted)
        except Exception as error:
            return "failed", f"{form}: {type(error).__name__}: {first_line(error)}"
        if fault:
            return ("failed" if "interface" in fault else "poor"), f"{form}: {fault}"
    return "compressed", f"{len(result.report.layers)} layers"


def _fault(made: ModelProto, model: ModelProto | Path, feeds: Sequence[Feed], wanted: list[list[Any]]) -> str | None:
    if _interface(made) != _interface(amct_onnx.graph.read_model(model)[0]):
        return "the interface changed"
    for feed, outputs in zip(feeds, wanted, strict=True):
        for want, got in zip(outputs, run(made, feed), strict=True):
            if not isinstance(want, np.ndarray):
                continue
            if want.ndim != got.ndim or want.dtype != got.dtype:
                return f"interface: an output of {want.shape} {want.dtype} became {got.shape} {got.dtype}"
            if want.shape != got.shape:
                return f"an output of {want.shape} became {got.shape}"
            if want.dtype.kind == "f" and (snr := _snr(want, got)) < LEAST_DB:
                return f"SNR {snr:.1f} dB"
    return None


def _interface(model: ModelProto) -> list[str]:
    """Names of inputs and outputs; stored weights that old models list as inputs are none."""
    stored = {entry.name for entry in model.graph.initializer}
    infos = [info for info in model.graph.input if info.name not in stored] + list(model.graph.output)
    return [f"{info.name}: {info.type.WhichOneof('value')}" for info in infos]


def _snr(want: np.ndarray, got: np.ndarray) -> float:
    finite = np.isfinite(want)
    want, got = want[finite].astype(np.float64), got[finite].astype(np.float64)
    noise, signal = float(np.square(want - got).sum()), float(np.square(want).sum())
    if noise == 0 or not want.size:
        return np.inf
    return 10 * np.log10(signal / noise) if signal else -np.inf


def run(model: ModelProto | Path, feed: Feed) -> list[Any]:
    """All outputs on one feed."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    source = str(model) if isinstance(model, Path) else model.SerializeToString()
    session = onnxruntime.InferenceSession(source, options, providers=["CPUExecutionProvider"])
    return list(session.run(None, {name: value for name, value in feed.items() if name}))


def first_line(error: Exception) -> str:
    """The beginning of what an error says."""
    return (str(error).strip() or type(error).__name__).splitlines()[0][:300]
