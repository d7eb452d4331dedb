"""``amct_onnx demo``: the whole way on the packaged model, float and compressed side by side."""

from __future__ import annotations

import argparse
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from amct_onnx import demo
from amct_onnx.api import quantize
from amct_onnx.api.saving import check_outputs, output_paths
from amct_onnx.cli.console import Console
from amct_onnx.cli.report import file_size, result_json, show_result
from amct_onnx.rewrite import OutputForm
from amct_onnx.runtime import fetch, open_session
from amct_onnx.runtime.latency import time_runs

_BATCH = 50


def run(arguments: argparse.Namespace, console: Console) -> int:
    """Compress the demo model, score all forms on labelled data, print the comparison."""
    check_outputs(output_paths(arguments.output, OutputForm), [])
    data = demo.load()
    console.say("model: mnist_mobilenet, trained on MNIST; 200 training images calibrate, 1,000 test images score")
    feeds = [{demo.INPUT_NAME: batch} for batch in np.split(data.calibration_images, 4)]
    result = quantize(data.model_path, feeds, progress=console.progress("calibrating", len(feeds)))
    paths = result.save(arguments.output)
    show_result(console, result, paths)
    models = {"float": data.model_path, "fake_quant": paths["fake_quant"], "qdq": paths["qdq"]}
    rows = _compare(models, data)
    console.say()
    console.table(
        ("model", "accuracy (95 % interval)", "size", f"latency, batch {_BATCH}: median (10 % .. 90 %)"),
        [(row["model"], row["accuracy_text"], row["size_text"], row["latency_text"]) for row in rows],
    )
    deploy = paths["ascend"]
    console.say(
        f"the deploy model ({file_size(deploy)}) is for the Ascend compiler and computes what fake_quant computes"
    )
    plain = [{key: value for key, value in row.items() if not key.endswith("_text")} for row in rows]
    console.result({**result_json(result, paths), "comparison": plain})
    return 0


def _compare(models: Mapping[str, Path], data: demo.Demo) -> list[dict[str, Any]]:
    sessions = {name: open_session(path) for name, path in models.items()}
    timed = time_runs(sessions, {demo.INPUT_NAME: data.test_images[:_BATCH]})
    rows: list[dict[str, Any]] = []
    for name, session in sessions.items():
        logits = [
            fetch(session, [demo.OUTPUT_NAME], {demo.INPUT_NAME: data.test_images[begin : begin + _BATCH]})[0]
            for begin in range(0, len(data.test_images), _BATCH)
        ]
        correct = int(np.sum(_predicted(logits) == data.test_labels))
        low, high = wilson_interval(correct, len(data.test_labels))
        fast, usual, slow = (float(value) for value in np.percentile(timed[name], (10, 50, 90)) * 1e3)
        rows.append(
            {
                "model": name,
                "accuracy": correct / len(data.test_labels),
                "accuracy_low": low,
                "accuracy_high": high,
                "images": len(data.test_labels),
                "bytes": models[name].stat().st_size,
                "latency_ms": usual,
                "latency_p10_ms": fast,
                "latency_p90_ms": slow,
                "latency_text": f"{usual:.2f} ms ({fast:.2f} .. {slow:.2f})",
                "accuracy_text": f"{correct / len(data.test_labels):.2%} ({low:.2%} .. {high:.2%})",
                "size_text": file_size(models[name]),
            }
        )
    return rows


def _predicted(logits: list[NDArray[Any]]) -> NDArray[np.int64]:
    return np.asarray(np.concatenate(logits).argmax(axis=1))


def wilson_interval(successes: int, total: int, z: float = 1.959964) -> tuple[float, float]:
    """95 % interval of a share (Wilson 1927)."""
    share = successes / total
    centre = (share + z * z / (2 * total)) / (1 + z * z / total)
    half = z / (1 + z * z / total) * math.sqrt(share * (1 - share) / total + z * z / (4 * total * total))
    return centre - half, centre + half
