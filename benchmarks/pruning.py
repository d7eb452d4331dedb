"""What pruning costs and gains on real trained models.

python -m benchmarks.pruning                           every workload, 10, 20, 30 and 50 % of the multiply-adds
python -m benchmarks.pruning --match mobilenet --savings 0.2 --methods "from data"
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

import onnx
from tabulate import tabulate

import amct_onnx
from amct_onnx import PruneResult
from amct_onnx.analyse.pruning.options import Importance
from amct_onnx.errors import AmctError
from amct_onnx.runtime import InferenceSession, open_session
from amct_onnx.runtime.latency import compare_latency
from benchmarks.runner import runner
from benchmarks.workloads.base import Feed, Workload
from benchmarks.workloads.registry import WORKLOADS

METHODS = ("l2, no data", "l2, fitted", "from data")
RANKINGS = tuple(f"{importance.value}, {how}" for importance in Importance for how in ("not fitted", "fitted"))
_BISECTIONS = 7


def main() -> None:
    """Run what was asked for and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--match", default="", help="only workloads with this in their name")
    parser.add_argument("--savings", default="0.1,0.2,0.3,0.5", help="shares of the multiply-adds")
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=METHODS, help="only these")
    parser.add_argument("--rankings", action="store_true", help="compare what ranks channels")
    parser.add_argument("--quick", action="store_true", help="judge on a tenth of the items")
    parser.add_argument("--report", type=Path, help="JSON lines to append to; what stands there is not run again")
    parser.add_argument("--keep", type=Path, help="folder for the pruned models, which --time times later, alone")
    parser.add_argument("--time", action="store_true", help="time the models of the report that were kept, no more")
    options = parser.parse_args()
    done = _done(options.report)
    rows = list(done.values())
    if options.time:
        rows = _time_kept(rows, options.keep)
        options.report.write_text("".join(json.dumps(row) + "\n" for row in rows))
        print(tabulate([_cells(row) for row in rows], headers=_HEADERS, tablefmt="github"))
        return
    methods = RANKINGS if options.rankings else options.methods
    savings = [float(saving) for saving in options.savings.split(",")]
    for name, make in WORKLOADS.items():
        if options.match in name:
            for row in _rows(make(options.quick), savings, methods, done, options.keep):
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
    workload: Workload,
    savings: list[float],
    methods: Sequence[str],
    done: dict[tuple[str, str, str], Any],
    keep: Path | None,
) -> Iterator[dict[str, Any]]:
    feeds = list(workload.fitting_feeds())
    session = open_session(workload.model_path)
    reference = workload.predict(runner(session))
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
            yield _judged(workload, result, reference, f"{saving:.0%}", method, seconds, keep)


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
    workload: Workload,
    result: PruneResult,
    reference: Any,
    saving: str,
    method: str,
    seconds: float,
    keep: Path | None,
) -> dict[str, Any]:
    rows = workload.predict(runner(open_session(result.model)))
    before, after = result.report.before, result.report.after
    row = {
        "model": workload.name,
        "saving": saving,
        "saved": 1 - after.multiply_adds / before.multiply_adds,
        "method": method,
        "score": str(workload.score_rows(rows)),
        "difference": str(workload.difference_rows(rows, reference)),
        "agreement": str(workload.agreement_rows(rows, reference)),
        "parameters": f"{after.parameters / before.parameters:.2f}",
        "speed_up": "",
        "seconds": f"{seconds:.0f}",
    }
    if keep is None:
        return {**row, "speed_up": _speed_up(workload, open_session(result.model, threads=1))}
    keep.mkdir(parents=True, exist_ok=True)
    onnx.save(result.model.to_proto(), _kept(keep, row))
    return row


def _speed_up(workload: Workload, pruned: InferenceSession) -> str:
    timed = {"float": open_session(workload.model_path, threads=1), "pruned": pruned}
    times = compare_latency(timed, workload.latency_feed(), seconds=2)
    return f"{times['float'] / times['pruned']:.2f}"


def _kept(folder: Path, row: dict[str, Any]) -> Path:
    return folder / f"{row['model']}_{row['saving']}_{row['method']}.onnx".replace(" ", "_")


def _time_kept(rows: list[dict[str, Any]], folder: Path) -> list[dict[str, Any]]:
    """The rows with the speed of models that were kept."""
    workloads = {row["model"]: WORKLOADS[row["model"]](True) for row in rows}
    return [
        row if row["speed_up"] else {**row, "speed_up": _speed_up(workloads[row["model"]], _session(folder, row))}
        for row in rows
    ]


def _session(folder: Path, row: dict[str, Any]) -> InferenceSession:
    return open_session(_kept(folder, row), threads=1)


if __name__ == "__main__":
    main()
