"""The rows of the table: each makes models from a workload's float model and its calibration feeds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from benchmarks import ours
from benchmarks.measure import runner
from benchmarks.peers import onnxruntime_static
from benchmarks.workloads.base import Feed, Workload

Make = Callable[[Workload, list[Feed], Path], dict[str, Path]]


@dataclass(frozen=True)
class Row:
    """How a row is made and what the table calls it.

    Attributes:
        title: What the table prints.
        make: Makes the models in a folder and returns them by form (``float``, ``qdq``, ``fake_quant``, ...).
        forms: The forms that are judged; one line each.
    """

    title: str
    make: Make
    forms: tuple[str, ...] = ("qdq",)


def _plain_inference(workload: Workload, feeds: list[Feed], folder: Path) -> dict[str, Path]:
    """Run the calibration feeds through the float model: the cost all quantizers are held against."""
    run = runner(workload.model_path)
    for feed in feeds:
        run(feed)
    return {"float": workload.model_path}


def _onnxruntime(operators: tuple[str, ...] | None) -> Make:
    def make(workload: Workload, feeds: list[Feed], folder: Path) -> dict[str, Path]:
        output = folder / "onnxruntime_static.onnx"
        return {"qdq": onnxruntime_static.quantize(workload.model_path, feeds, output, operators)}

    return make


def _ours(formats: tuple[str, ...] | None) -> Make:
    def make(workload: Workload, feeds: list[Feed], folder: Path) -> dict[str, Path]:
        return ours.quantize(workload.model_path, feeds, folder / "amct_onnx", formats)

    return make


ROWS: dict[str, Row] = {
    "float": Row("float", _plain_inference, ("float",)),
    "ort-all": Row("onnxruntime static, all operators", _onnxruntime(None)),
    "ort-main": Row("onnxruntime static, Conv/MatMul/Gemm", _onnxruntime(onnxruntime_static.MAIN_OPERATORS)),
    "amct": Row("amct_onnx", _ours(("qdq", "fake_quant")), ("qdq", "fake_quant")),
    "amct-all": Row("amct_onnx, all formats", _ours(None)),
}
