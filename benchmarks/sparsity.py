"""What 4:2 sparsity and combined compression cost on real trained models.

python -m benchmarks.sparsity                          every workload
python -m benchmarks.sparsity --match mnist --report sparsity.jsonl
python -m benchmarks.sparsity --savings 0.1,0.2 --match mobilenet_v2    only layers that lose least, and with INT8

Rows: float; two of four weights by size; chosen and made up for from data; the same quantized; and 20 % of the
multiply-adds pruned, then quantized. Zeros are counted in the written files. Judged on other data than was fitted to.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import onnx
from onnx import ModelProto, numpy_helper
from tabulate import tabulate

import amct_onnx
from amct_onnx.errors import AmctError
from amct_onnx.runtime import open_session
from benchmarks.runner import runner
from benchmarks.workloads.base import Feed, Workload
from benchmarks.workloads.registry import WORKLOADS

Make: TypeAlias = Callable[[], ModelProto]

_COLUMNS = ("model", "row", "score", "difference", "agreement", "zeros", "megabytes", "seconds")


def main() -> None:
    """Run what was asked for and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--match", default="", help="only workloads with this in their name")
    parser.add_argument("--quick", action="store_true", help="judge on a tenth of the items")
    parser.add_argument("--report", type=Path, help="JSON lines to append to; what stands there is not run again")
    parser.add_argument("--savings", help="shares of the multiply-adds to save, with , between: these rows alone")
    options = parser.parse_args()
    savings = [float(share) for share in options.savings.split(",")] if options.savings else []
    rows = _read(options.report)
    done = {(row["model"], row["row"]) for row in rows}
    for name, make in WORKLOADS.items():
        if options.match not in name:
            continue
        for row in _rows(make(options.quick), done, savings):
            rows.append(row)
            if options.report:
                with options.report.open("a") as file:
                    file.write(json.dumps(row) + "\n")
            print(f"{row['model']}, {row['row']}: {row['agreement']}", file=sys.stderr)
    print(tabulate([[row[name] for name in _COLUMNS] for row in rows], headers=_COLUMNS, tablefmt="github"))


def _read(report: Path | None) -> list[dict[str, Any]]:
    if report is None or not report.exists():
        return []
    return [json.loads(line) for line in report.read_text().splitlines()]


def _rows(workload: Workload, done: set[tuple[str, str]], savings: Sequence[float]) -> Iterator[dict[str, Any]]:
    reference = workload.predict(runner(open_session(workload.model_path)))
    makers = _searched(workload, savings) if savings else _makers(workload)
    for row, make in makers.items():
        if (workload.name, row) in done:
            continue
        begin = time.process_time()
        try:
            model = make()
        except AmctError as error:
            print(f"{workload.name}, {row}: {error}", file=sys.stderr)
            continue
        yield _judged(workload, model, reference, row, time.process_time() - begin)


def _makers(workload: Workload) -> dict[str, Make]:
    source = workload.model_path
    few = list(workload.calibration_feeds())

    @cache
    def compensated() -> ModelProto:
        return amct_onnx.sparsify(source, workload.thinning_feeds(), trial=False).model.to_proto()

    def pruned() -> ModelProto:
        return amct_onnx.prune(source, workload.fitting_feeds(), saving=0.2).model.to_proto()

    return {
        "float": lambda: onnx.load(source),
        "4:2 by size": lambda: amct_onnx.sparsify(source).model.to_proto(),
        "4:2 compensated": compensated,
        "4:2 compensated, int8": lambda: _quantized(compensated(), few),
        "int8": lambda: _quantized(onnx.load(source), few),
        "20 % pruned, int8": lambda: _quantized(pruned(), few),
    }


def _searched(workload: Workload, savings: Sequence[float]) -> dict[str, Make]:
    """Only so many layers are thinned out that zeros save a share of the multiply-adds."""
    few = list(workload.calibration_feeds())

    @cache
    def thinned(saving: float) -> ModelProto:
        feeds = workload.thinning_feeds()
        return amct_onnx.sparsify(workload.model_path, feeds, saving=saving, trial=False).model.to_proto()

    def quantized(saving: float) -> ModelProto:
        return _quantized(thinned(saving), few)

    found: dict[str, Make] = {}
    for saving in savings:
        found[f"4:2, {saving:.0%} saved"] = partial(thinned, saving)
        found[f"4:2, {saving:.0%} saved, int8"] = partial(quantized, saving)
    return found


def _quantized(model: ModelProto, feeds: list[Feed]) -> ModelProto:
    return amct_onnx.quantize(model, feeds, formats=("qdq",), trial=False).model("qdq")


def _judged(workload: Workload, model: ModelProto, reference: Any, row: str, seconds: float) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.onnx"
        onnx.save(model, path)
        rows = workload.predict(runner(open_session(path)))
        size, zeros = path.stat().st_size, _zeros(onnx.load(path))
    return {
        "model": workload.name,
        "row": row,
        "score": str(workload.score_rows(rows)),
        "difference": str(workload.difference_rows(rows, reference)),
        "agreement": str(workload.agreement_rows(rows, reference)),
        "zeros": f"{zeros:.3f}",
        "megabytes": f"{size / 1e6:.2f}",
        "seconds": f"{seconds:.0f}",
    }


def _zeros(model: ModelProto) -> float:
    """Share of zeros among the weights of two and more dimensions."""
    nodes = [node for node in model.graph.node if node.op_type == "Constant"]
    constants = [attribute.t for node in nodes for attribute in node.attribute if attribute.HasField("t")]
    tensors = [tensor for tensor in (*model.graph.initializer, *constants) if len(tensor.dims) > 1]
    weights = [numpy_helper.to_array(tensor) for tensor in tensors]
    return 1 - sum(int(np.count_nonzero(array)) for array in weights) / max(1, sum(array.size for array in weights))


if __name__ == "__main__":
    main()
