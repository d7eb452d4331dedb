"""Child process: judge one model against the truth and against the float model, then time both."""

from __future__ import annotations

import argparse
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import kernels
from benchmarks.fidelity import ChannelNoise
from benchmarks.measure import latency, runner, size_on_disk
from benchmarks.reports import write_report
from benchmarks.workloads.base import Workload
from benchmarks.workloads.registry import WORKLOADS


def judge(workload: Workload, model_path: Path) -> dict[str, Any]:
    """Run both models over the evaluation feeds once and return every figure of quality."""
    reference_run = runner(workload.model_path)
    model_run = runner(model_path)
    is_float = model_path == workload.model_path
    noise = ChannelNoise(workload.channel_axis)
    reference_rows, rows = [], []
    for feed in workload.evaluation_feeds():
        reference = reference_run(feed)
        outputs = reference if is_float else model_run(feed)
        noise.add(workload.signal(reference, feed), workload.signal(outputs, feed))
        reference_rows.append(workload.decode(reference, feed))
        rows.append(workload.decode(outputs, feed))
    ours, theirs = np.concatenate(rows), np.concatenate(reference_rows)
    return {
        "score": asdict(workload.score_rows(ours)),
        "difference": asdict(workload.difference_rows(ours, theirs)),
        "agreement": asdict(workload.agreement_rows(ours, theirs)),
        "worst_channel_snr": noise.worst(),
        "whole_snr": noise.whole(),
    }


def time_both(workload: Workload, model_path: Path, seconds: float) -> dict[str, Any]:
    """Time the model beside the float model with one thread and with onnxruntime's own choice."""
    feed = workload.latency_feed()
    return {
        label: asdict(latency(workload.model_path, model_path, feed, threads, seconds))
        for label, threads in (("one_thread", 1), ("default", 0))
    }


def main() -> None:
    """Judge, time, and write the figures as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workload", choices=WORKLOADS, required=True)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--report", type=Path, required=True, help="JSON to write")
    parser.add_argument("--seconds", type=float, default=4.0, help="time given to each latency measurement")
    parser.add_argument("--quick", action="store_true", help="judge on few samples")
    options = parser.parse_args()

    workload = WORKLOADS[options.workload](options.quick)
    report = judge(workload, options.model)
    report["kernels"] = asdict(kernels.count(options.model))
    report["bytes"] = size_on_disk(options.model)
    report["latency"] = time_both(workload, options.model, options.seconds)
    write_report(options.report, report)


if __name__ == "__main__":
    main()
