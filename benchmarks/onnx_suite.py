"""What becomes of the models that onnx tests its backends with: compressed, left alone, refused, or failed.

python -m benchmarks.onnx_suite                  every model, as it is and with all inputs but the first made constant
python -m benchmarks.onnx_suite --match lstm     only those with this in their name

Each model is quantized on the data that comes with it and run in onnxruntime; a process that dies counts as failed.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import warnings
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import ModelProto, numpy_helper
from onnx.backend.test.case.node import collect_testcases
from tabulate import tabulate
from tqdm import tqdm

from benchmarks.outcomes import Feed, outcome_of


def main() -> None:
    """Run the suite, or one stretch of it as a child."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--match", default="", help="only models with this in their name")
    parser.add_argument("--report", type=Path, help="JSON to write, one entry per model")
    parser.add_argument("--begin", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    if options.begin is not None:
        _run_from(options.begin, options.match)
        return
    results = list(tqdm(_results(options.match), disable=not sys.stderr.isatty()))
    if options.report:
        options.report.write_text(json.dumps(results, indent=1))
    print(_table(results))


def _table(results: list[dict[str, Any]]) -> str:
    variants = ("as it is", "made constant")
    counts = {
        variant: Counter(entry["outcome"] for entry in results if entry["variant"] == variant) for variant in variants
    }
    outcomes = sorted({entry["outcome"] for entry in results})
    rows = [[outcome, *(counts[variant][outcome] for variant in variants)] for outcome in outcomes]
    lines = [tabulate(rows, headers=["outcome", *variants], tablefmt="github")]
    lines += [
        f"{entry['name']} ({entry['variant']}): {entry['outcome']}: {entry['detail']}"
        for entry in results
        if entry["outcome"] in ("failed", "poor")
    ]
    return "\n".join(lines)


def _results(match: str) -> Iterator[dict[str, Any]]:
    """Outcomes of all models; where a child dies, the next one goes on behind the model that killed it."""
    begin = 0
    while True:
        command = [sys.executable, "-m", "benchmarks.onnx_suite", "--begin", str(begin), "--match", match]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as child:
            current: dict[str, Any] | None = None
            for line in child.stdout or ():
                entry = json.loads(line)
                begin = entry["number"] + 1
                if "outcome" in entry:
                    current = None
                    yield entry
                else:
                    current = entry
        if child.returncode == 0:
            return
        yield {**(current or {"name": "?", "variant": "as it is"}), "outcome": "failed", "detail": "the process died"}


def _run_from(begin: int, match: str) -> None:
    for number, (name, variant, model, feeds) in enumerate(_cases(match)):
        if number < begin:
            continue
        entry = {"number": number, "name": name, "variant": variant}
        print(json.dumps(entry), flush=True)
        outcome = outcome_of(model, feeds)
        print(json.dumps({**entry, "outcome": outcome.word, "detail": outcome.detail}), flush=True)


def _cases(match: str) -> Iterator[tuple[str, str, ModelProto, list[Feed]]]:
    for name, model, data in _models():
        if match not in name:
            continue
        names = [info.name for info in model.graph.input]
        feeds = [dict(zip(names, values, strict=False)) for values in data]
        yield name, "as it is", model, feeds
        if feeds and len(names) > 1 and all(isinstance(value, np.ndarray) for value in feeds[0].values()):
            yield name, "made constant", _with_constants(model, feeds[0]), [{names[0]: feeds[0][names[0]]}]


def _models() -> Iterator[tuple[str, ModelProto, list[list[Any]]]]:
    for case in collect_testcases(None):
        if case.model is not None:
            yield case.name, case.model, [list(inputs) for inputs, _ in case.data_sets or ()]
    folder = Path(onnx.__file__).parent / "backend/test/data"
    for path in sorted(folder.glob("*/*/model.onnx")):
        model = onnx.load(path)
        yield path.parent.name, model, [_stored(data, model) for data in sorted(path.parent.glob("test_data_set_*"))]
    for path in sorted((folder / "light").glob("*.onnx")):
        yield path.stem, (model := onnx.load(path)), [_invented(model)]


def _stored(folder: Path, model: ModelProto) -> list[Any]:
    files = sorted(folder.glob("input_*.pb"), key=lambda path: int(path.stem.split("_")[1]))
    values = []
    for path, info in zip(files, model.graph.input, strict=False):
        if not info.type.HasField("tensor_type"):
            return []
        tensor = onnx.TensorProto.FromString(path.read_bytes())
        values.append(numpy_helper.to_array(tensor))
    return values


def _invented(model: ModelProto) -> list[np.ndarray]:
    """The light networks come without data; their weights are inputs by old custom, so only true inputs are fed."""
    random = np.random.default_rng(0)
    stored = {entry.name for entry in model.graph.initializer}
    shapes = [
        [dim.dim_value or 1 for dim in info.type.tensor_type.shape.dim]
        for info in model.graph.input
        if info.name not in stored
    ]
    return [random.normal(size=shape).astype(np.float32) for shape in shapes]


def _with_constants(model: ModelProto, feed: Feed) -> ModelProto:
    changed = ModelProto()
    changed.CopyFrom(model)
    first = model.graph.input[0]
    del changed.graph.input[1:]
    changed.ir_version = max(changed.ir_version, 4)  # older ones want every constant among the inputs
    changed.graph.initializer.extend(
        numpy_helper.from_array(np.asarray(value), name) for name, value in feed.items() if name and name != first.name
    )
    return changed


if __name__ == "__main__":
    main()
