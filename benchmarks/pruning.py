"""What pruning costs and gains on real trained models.

python -m benchmarks.pruning                           every workload, 10, 20, 30 and 50 % of the multiply-adds
python -m benchmarks.pruning --match mobilenet --savings 0.2
python -m benchmarks.pruning --savings 0.2 --rankings  every way to rank channels, with one ratio for all layers

Every row saves the same share of the multiply-adds: by one ratio for all layers and the L2 norm of the weights, without
data; the same with layers fitted again; and with ranking, allocation and fitting from calibration data. Judged on other
data than was calibrated on. Latency is that of one feed with one thread, float and pruned taking turns.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from tabulate import tabulate

import amct_onnx
from amct_onnx import PruneResult
from amct_onnx.analyse.pruning.options import Importance
from amct_onnx.errors import AmctError
from amct_onnx.runtime import InferenceSession, fetch, open_session
from amct_onnx.runtime.latency import compare_latency
from benchmarks.workloads.base import Feed, Outputs, Workload
from benchmarks.workloads.registry import WORKLOADS

METHODS = ("l2, no data", "l2, fitted", "from data")
RANKINGS = tuple(f"{importance.value}, {how}" for importance in Importance for how in ("not fitted", "fitted"))
_BISECTIONS = 7


def main() -> None:
    """Run what was asked for and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--match", default="", help="only workloads with this in their name")
    parser.add_argument("--savings", default="0.1,0.2,0.3,0.5", help="shares of the multiply-adds")
    parser.add_argument("--rankings", action="store_true", help="compare what ranks channels")
    parser.add_argument("--quick", action="store_true", help="judge on a tenth of the items")
    parser.add_argument("--report", type=Path, help="JSON lines to append to; what stands there is not run again")
    options = parser.parse_args()
    done = _done(options.report)
    rows = list(done.values())
    methods = RANKINGS if options.rankings else METHODS
    savings = [float(saving) for saving in options.savings.split(",")]
    for name, make in WORKLOADS.items():
        if options.match in name:
            for row in _rows(make(options.quick), savings, methods, done):
                rows.append(row)
                if options.report:
                    with options.report.open("a") as file:
                        file.write(json.dumps(row) + "\n")
                print(f"{row['model']}: {row['method']}, {row['saving']}: {row['agreement']}", file=sys.stderr)
    print(tabulate([_cells(row) for row in rows], headers=_HEADERS, tablefmt="github"))


_HEADERS = (
    "model",
    "saving",
    "method",
    "score",
    "difference to float",
    "agreement",
    "parameters",
    "speed-up",
    "seconds",
)


def _cells(row: dict[str, Any]) -> list[str]:
    names = ("model", "saving", "method", "score", "difference", "agreement", "parameters", "speed_up", "seconds")
    return [str(row[name]) for name in names]


def _done(report: Path | None) -> dict[tuple[str, str, str], dict[str, Any]]:
    if report is None or not report.exists():
        return {}
    rows = [json.loads(line) for line in report.read_text().splitlines()]
    return {(row["model"], row["saving"], row["method"]): row for row in rows}


def _rows(
    workload: Workload, savings: list[float], methods: Sequence[str], done: dict[tuple[str, str, str], Any]
) -> Iterator[dict[str, Any]]:
    feeds = list(workload.calibration_feeds())
    session = open_session(workload.model_path)
    reference = workload.predict(_runner(session))
    for saving in savings:
        for method in methods:
            if (workload.name, f"{saving:.0%}", method) in done:
                continue
            begin = time.process_time()
            try:
                result = _pruned(workload.model_path, feeds, saving, method)
            except AmctError as error:
                print(f"{workload.name}, {method}: {error}", file=sys.stderr)
                continue
            seconds = time.process_time() - begin
            yield _judged(workload, result, reference, f"{saving:.0%}", method, seconds)


def _pruned(model: Path, feeds: list[Feed], saving: float, method: str) -> PruneResult:
    if method == "from data":
        return amct_onnx.prune(model, feeds, saving=saving)
    importance, how = method.split(", ")
    data = None if how == "no data" else feeds
    return amct_onnx.prune(model, data, ratio=_ratio_for(model, saving), importance=importance, recover=how == "fitted")


def _ratio_for(model: Path, saving: float) -> float:
    """The ratio that saves this share of the multiply-adds when every layer has it."""
    low, high = 0.0, 0.95
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2
        report = amct_onnx.prune(model, ratio=middle).report
        saved = 1 - report.after.multiply_adds / report.before.multiply_adds
        low, high = (middle, high) if saved < saving else (low, middle)
    return high


def _judged(
    workload: Workload, result: PruneResult, reference: Any, saving: str, method: str, seconds: float
) -> dict[str, Any]:
    rows = workload.predict(_runner(open_session(result.model)))
    timed = {"float": open_session(workload.model_path, threads=1), "pruned": open_session(result.model, threads=1)}
    times = compare_latency(timed, workload.latency_feed(), seconds=2)
    before, after = result.report.before, result.report.after
    return {
        "model": workload.name,
        "saving": saving,
        "saved": 1 - after.multiply_adds / before.multiply_adds,
        "method": method,
        "score": str(workload.score_rows(rows)),
        "difference": str(workload.difference_rows(rows, reference)),
        "agreement": str(workload.agreement_rows(rows, reference)),
        "parameters": f"{after.parameters / before.parameters:.2f}",
        "speed_up": f"{times['float'] / times['pruned']:.2f}",
        "seconds": f"{seconds:.0f}",
    }


def _runner(session: InferenceSession) -> Any:
    names = [output.name for output in session.get_outputs()]

    def run(feed: Feed) -> Outputs:
        return [np.array(array) for array in fetch(session, names, feed)]

    return run


if __name__ == "__main__":
    main()
