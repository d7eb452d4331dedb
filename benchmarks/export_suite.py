"""What becomes of real architectures, as both of torch's exporters write them.

python -m benchmarks.export_suite --report exports.jsonl                 every architecture, both exporters
python -m benchmarks.export_suite --report exports.jsonl --match vit     only those with this in their name
python -m benchmarks.export_suite --report exports.jsonl --table         the counts so far

Weights and data are random. Needs torch, torchvision, timm and transformers beside the package. Each model has a
process of its own; what the report holds already is not done again.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import warnings
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
from tabulate import tabulate
from tqdm import tqdm

from benchmarks.outcomes import Feed, first_line, outcome_of

EXPORTERS = ("script", "dynamo")
SECONDS = 900
FEEDS = 2


def main() -> None:
    """Run the suite, or one model of it as a child."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--report", type=Path, required=True, help="a line of JSON per model, added to")
    parser.add_argument("--match", default="", help="only models with this in their name")
    parser.add_argument("--exporter", choices=EXPORTERS, help="only this one")
    parser.add_argument("--table", action="store_true", help="only show what the report holds")
    parser.add_argument("--one", nargs=2, metavar=("NAME", "EXPORTER"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        warnings.simplefilter("ignore")
        print(json.dumps(_one(*options.one)))
        return
    if not options.table:
        _run_all(options.report, options.match, [options.exporter] if options.exporter else list(EXPORTERS))
    print(_table(_read(options.report)))


def _run_all(report: Path, match: str, exporters: list[str]) -> None:
    from benchmarks import zoo

    done = {(entry["name"], entry["exporter"]) for entry in _read(report)}
    wanted = [(name, exporter) for name in zoo.names() if match in name for exporter in exporters]
    for name, exporter in tqdm([job for job in wanted if job not in done], disable=not sys.stderr.isatty()):
        with report.open("a") as stream:
            stream.write(json.dumps({"name": name, "exporter": exporter, **_child(name, exporter)}) + "\n")


def _child(name: str, exporter: str) -> dict[str, Any]:
    command = [sys.executable, "-m", "benchmarks.export_suite", "--report", "-", "--one", name, exporter]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False)
    except subprocess.TimeoutExpired:
        return {"outcome": "too slow", "detail": f"more than {SECONDS} s"}
    try:
        answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    except (IndexError, ValueError):
        return {"outcome": "failed", "detail": f"the process died: {done.stderr.strip()[-300:]}"}
    return answer


def _one(name: str, exporter: str) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="export_suite_") as folder:
        path = Path(folder) / "model.onnx"
        try:
            feeds = _export(name, exporter, path)
        except Exception as error:  # what torch cannot export is torch's affair
            return {"outcome": "not exported", "detail": f"{type(error).__name__}: {first_line(error)}"}
        outcome = outcome_of(path, feeds)
    return {
        "outcome": outcome.word,
        "detail": outcome.detail,
        "layers": outcome.layers,
        "refused": outcome.refused,
    }


def _export(name: str, exporter: str, path: Path) -> list[Feed]:
    import torch

    from benchmarks import zoo

    module, inputs = zoo.build(name)
    with torch.no_grad():
        torch.onnx.export(
            module,
            tuple(inputs.values()),
            str(path),
            input_names=list(inputs),
            dynamo=exporter == "dynamo",
            opset_version=17 if exporter == "script" else None,
        )
    arrays = {name: tensor.numpy() for name, tensor in inputs.items()}
    return [{name: _like(array, seed) for name, array in arrays.items()} for seed in range(FEEDS)]


def _like(array: np.ndarray, seed: int) -> np.ndarray:
    """Other values of the same kind: numbers, token ids, or a mask of ones as it is."""
    random = np.random.default_rng(seed)
    if array.dtype.kind == "f":
        return random.random(array.shape, dtype=np.float32)
    return array if array.max() <= 1 else random.integers(3, 99, array.shape)


def _read(report: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in report.read_text().splitlines()] if report.exists() else []


def _table(entries: list[dict[str, Any]]) -> str:
    columns = sorted({(entry["name"].split("/")[0], entry["exporter"]) for entry in entries})
    counts = Counter((entry["outcome"], (entry["name"].split("/")[0], entry["exporter"])) for entry in entries)
    rows = [[word, *(counts[word, column] for column in columns)] for word in sorted({key[0] for key in counts})]
    for label, key in (("layers quantized", "layers"), ("nodes refused", "refused")):
        sums: Counter[tuple[str, str]] = Counter()
        for entry in entries:
            sums[entry["name"].split("/")[0], entry["exporter"]] += entry.get(key, 0)
        rows.append([label, *(sums[column] for column in columns)])
    lines = [tabulate(rows, headers=["outcome", *map(", ".join, columns)], tablefmt="github")]
    lines += [
        f"{entry['name']} ({entry['exporter']}): {entry['outcome']}: {entry['detail']}"
        for entry in entries
        if entry["outcome"] not in ("compressed", "not exported")
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    main()
