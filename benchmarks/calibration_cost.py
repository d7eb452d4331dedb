"""What calibration costs beside plain inference of the same feeds: CPU time, memory, and memory per further feed.

Run from the repository root: ``python -m benchmarks.calibration_cost``. Each method runs in processes of its own: some
times on the feeds, of which the cheapest counts, for what a busy machine adds is not the method's; then on the feeds
twice over: the difference of the peaks tells what a further feed costs. Beside the workloads stands a graph of the
shape of ResNet-50 with random weights, for calibration does not care what a model knows.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import onnx
from onnxruntime.quantization.calibrate import CalibrationMethod, create_calibrator

import amct_onnx
from benchmarks.measure import cost, run_child, runner
from benchmarks.peers.onnxruntime_static import MAIN_OPERATORS, FeedReader
from benchmarks.reports import read_report, write_report
from benchmarks.shapes import resnet50, resnet50_feeds
from benchmarks.workloads.base import Feed
from benchmarks.workloads.registry import WORKLOADS

Method = Callable[[Path, list[Feed]], object]
MEMORY_CAP = 16 * 2**30


def plain(model_path: Path, feeds: list[Feed]) -> None:
    """Run the float model."""
    run = runner(model_path)
    for feed in feeds:
        run(feed)


def fetching(model_path: Path, feeds: list[Feed]) -> None:
    """Run the float model and hand out every activation that a convolution or matrix product reads."""
    model = onnx.load(model_path)
    constant = {weight.name for weight in model.graph.initializer}
    constant |= {name for node in model.graph.node if node.op_type == "Constant" for name in node.output}
    known = constant | {value.name for value in [*model.graph.input, *model.graph.output]}
    main = [node for node in model.graph.node if node.op_type in MAIN_OPERATORS]
    wanted = dict.fromkeys(name for node in main for name in node.input[:2] if name not in known)
    model.graph.output.extend(onnx.helper.make_empty_tensor_value_info(name) for name in wanted)
    with tempfile.TemporaryDirectory() as folder:
        watched = Path(folder) / "watched.onnx"
        onnx.save(model, watched)
        plain(watched, feeds)


def onnxruntime_min_max(model_path: Path, feeds: list[Feed]) -> None:
    """Calibrate with onnxruntime's min-max calibrator, for the inputs and outputs of the same operators."""
    with tempfile.TemporaryDirectory() as folder:
        calibrator = create_calibrator(
            model_path,
            list(MAIN_OPERATORS),
            augmented_model_path=str(Path(folder) / "augmented.onnx"),
            calibrate_method=CalibrationMethod.MinMax,
        )
        calibrator.collect_data(FeedReader(feeds))
        calibrator.compute_data()


def ours(model_path: Path, feeds: list[Feed]) -> None:
    """Quantize with amct_onnx, min-max, rewriting included."""
    amct_onnx.quantize(model_path, feeds, formats=("qdq", "fake_quant"), act="minmax", trial=False)


def ours_search(model_path: Path, feeds: list[Feed]) -> None:
    """Quantize with amct_onnx and its default search over ranges, rewriting included."""
    amct_onnx.quantize(model_path, feeds, formats=("qdq", "fake_quant"), trial=False)


METHODS: dict[str, Method] = {
    "plain inference": plain,
    "fetching layer inputs": fetching,
    "onnxruntime min-max, Conv/MatMul/Gemm": onnxruntime_min_max,
    "amct_onnx min-max, whole quantize": ours,
    "amct_onnx default, whole quantize": ours_search,
}


RESNET50_SHAPE = "resnet50_shape"
CASES = (*WORKLOADS, RESNET50_SHAPE)


def case(name: str) -> tuple[Path, list[Feed]]:
    """Return the model and the calibration feeds of a case."""
    if name == RESNET50_SHAPE:
        return resnet50(), resnet50_feeds()
    workload = WORKLOADS[name]()
    return workload.model_path, workload.calibration_feeds()


def child(name: str, method: str, repeats: int, report: Path) -> None:
    """Run one method on a case and report its cost."""
    model_path, once = case(name)
    feeds = once * repeats
    _, spent = cost(lambda: METHODS[method](model_path, feeds))
    write_report(report, {"cost": asdict(spent), "feeds": len(feeds)})


def run(name: str, method: str, repeats: int) -> dict[str, Any]:
    """Run one method in its own process on the feeds ``repeats`` times over."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        arguments = ["--child", name, method, str(repeats), str(report)]
        ended = run_child("benchmarks.calibration_cost", arguments, MEMORY_CAP)
        if ended.failure:
            return {"failure": ended.failure}
        return {**read_report(report), "peak_bytes": ended.peak_bytes}


def measure(name: str, method: str, repetitions: int) -> dict[str, Any]:
    """Return the cheapest of some runs, with the growth of the peak for each further feed."""
    print(f"{name}: {method}", file=sys.stderr, flush=True)
    runs = [run(name, method, 1) for _ in range(repetitions)]
    doubled = run(name, method, 2)
    for outcome in (*runs, doubled):
        if "failure" in outcome:
            return outcome
    best = min(runs, key=lambda outcome: outcome["cost"]["cpu"])
    peak = min(outcome["peak_bytes"] for outcome in runs)
    return {**best, "peak_bytes": peak, "growth": (doubled["peak_bytes"] - peak) / best["feeds"]}


def line(name: str, method: str, measured: dict[str, Any], base: dict[str, Any]) -> str:
    """Write one line of the table."""
    if "failure" in measured:
        return f"| {name} | {method} | {measured['failure']} | | | | | |"
    spent, peak = measured["cost"], measured["peak_bytes"]
    cells = (
        name,
        method,
        f"{spent['cpu']:.2f}",
        f"{spent['cpu'] / base['cost']['cpu']:.2f}",
        f"{spent['wall']:.2f}",
        f"{peak / 1e6:.0f}",
        f"{peak / base['peak_bytes']:.2f}",
        f"{measured['growth'] / 1e6:.2f}",
    )
    return f"| {' | '.join(cells)} |"


def main() -> None:
    """Measure and print one markdown table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cases", nargs="+", choices=CASES, default=CASES)
    parser.add_argument("--repetitions", type=int, default=3, help="runs of which the cheapest counts")
    parser.add_argument("--child", nargs=4, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        name, method, repeats, report = options.child
        child(name, method, int(repeats), Path(report))
        return
    print("| case | method | CPU, s | / plain | wall, s | peak, MB | / plain | growth, MB a feed |")
    print("|---|---|---|---|---|---|---|---|")
    for name in options.cases:
        base: dict[str, Any] = {}
        for method in METHODS:
            measured = measure(name, method, options.repetitions)
            base = base or measured
            print(line(name, method, measured, base), flush=True)


if __name__ == "__main__":
    main()
