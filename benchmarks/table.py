"""Measure every row on every workload and print one table.

Run from the repository root, after ``benchmarks/README.md``'s preparations::

    python -m benchmarks.table --output benchmarks/results/table.json

Each model is made in one child process, under a memory cap, and judged in another; nothing else runs meanwhile.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from importlib import metadata
from pathlib import Path
from typing import Any

from benchmarks.markdown import render
from benchmarks.measure import run_child
from benchmarks.reports import read_report, write_report
from benchmarks.rows import ROWS
from benchmarks.workloads.registry import WORKLOADS

QUICK_SECONDS, SECONDS = 0.5, 4.0


def machine() -> dict[str, str]:
    """Describe what the figures depend on beside the code."""
    info = Path("/proc/cpuinfo")
    flags = info.read_text(encoding="utf-8") if info.exists() else ""
    return {
        "cores": str(os.cpu_count()),
        "VNNI": "yes" if "vnni" in flags else "no",
        "python": sys.version.split()[0],
        **{package: metadata.version(package) for package in ("numpy", "onnx", "onnxruntime")},
    }


def measure_row(workload: str, row: str, options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Make the models of one row and judge each form the row promises."""
    report = folder / "produced.json"
    arguments = ["--workload", workload, "--row", row, "--folder", str(folder), "--report", str(report)]
    child = run_child("benchmarks.produce", arguments, int(options.memory_cap * 2**30))
    if child.failure:
        return {"failure": child.failure, "stderr": child.stderr[-2000:]}
    produced = read_report(report)
    forms = {
        form: assess(workload, Path(produced["models"][form]), options, folder / f"{form}.json")
        for form in ROWS[row].forms
    }
    return {"cost": produced["cost"], "peak_bytes": child.peak_bytes, "forms": forms}


def assess(workload: str, model: Path, options: argparse.Namespace, report: Path) -> dict[str, Any]:
    """Judge one model in its own process."""
    seconds = QUICK_SECONDS if options.quick else SECONDS
    arguments = ["--workload", workload, "--model", str(model), "--report", str(report), "--seconds", str(seconds)]
    child = run_child("benchmarks.assess", arguments + ["--quick"] * options.quick)
    if child.failure:
        return {"failure": child.failure, "stderr": child.stderr[-2000:]}
    return read_report(report)


def parse() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--workloads", nargs="+", choices=WORKLOADS, default=list(WORKLOADS))
    parser.add_argument("--rows", nargs="+", choices=ROWS, default=list(ROWS))
    parser.add_argument("--output", type=Path, help="JSON of all results, rewritten after every row")
    parser.add_argument("--quick", action="store_true", help="few samples and short timings, to try things out")
    parser.add_argument("--memory-cap", type=float, default=8.0, help="GiB of address space for each quantizer")
    return parser.parse_args()


def main() -> None:
    """Measure and print."""
    options = parse()
    measured: dict[str, dict[str, Any]] = {}
    results = {"machine": machine(), "workloads": measured}
    for workload in options.workloads:
        rows = measured.setdefault(workload, {})
        for row in options.rows:
            print(f"{workload}: {ROWS[row].title}", file=sys.stderr, flush=True)
            with tempfile.TemporaryDirectory() as folder:
                rows[row] = measure_row(workload, row, options, Path(folder))
            if options.output:
                write_report(options.output, results)
    print(render(results))


if __name__ == "__main__":
    main()
