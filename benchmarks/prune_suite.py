"""What pruning does to real architectures: how much goes, what stays and why, and whether the result runs.

python -m benchmarks.prune_suite --report prune.jsonl                 every architecture
python -m benchmarks.prune_suite --report prune.jsonl --match vit     only those with this in their name
python -m benchmarks.prune_suite --report prune.jsonl --models DIR    keep the exported models there
python -m benchmarks.prune_suite --report prune.jsonl --table         the counts so far

Weights are random. Needs torch, torchvision, timm and transformers beside the package. Each model has a process of its
own; what the report holds already is not done again. A model is exported with a free batch and free sides of images
where torch can do that; the pruned one must run at every size at which the source runs, and give results of the same
shapes. Channels that nothing mixes must go without a trace.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
import warnings
from collections import Counter
from pathlib import Path
from typing import Any

from tabulate import tabulate
from tqdm import tqdm

from benchmarks.prune_outcomes import outcome_of

SECONDS = 600
EXPORTERS = ("script", "dynamo")


def main() -> None:
    """Run the suite, or one model of it as a child."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--report", type=Path, required=True, help="a line of JSON per model, added to")
    parser.add_argument("--match", default="", help="only models whose name this pattern matches")
    parser.add_argument("--exporter", choices=EXPORTERS, default="script", help="which of torch's exporters")
    parser.add_argument("--models", type=Path, help="folder of exported models; by default they are not kept")
    parser.add_argument("--table", action="store_true", help="only show what the report holds")
    parser.add_argument("--one", metavar="NAME", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        warnings.simplefilter("ignore")
        print(json.dumps(_one(options.one, options.exporter, options.models)))
        return
    if not options.table:
        _run_all(options)
    print(_table(_read(options.report)))


def _run_all(options: argparse.Namespace) -> None:
    from benchmarks import zoo

    done = {(entry["name"], entry["exporter"]) for entry in _read(options.report)}
    wanted = [(name, options.exporter) for name in zoo.names() if re.search(options.match, name)]
    for name, exporter in tqdm([job for job in wanted if job not in done], disable=not sys.stderr.isatty()):
        with options.report.open("a") as stream:
            answer = _child(name, exporter, options.models)
            stream.write(json.dumps({"name": name, "exporter": exporter, **answer}) + "\n")


def _child(name: str, exporter: str, models: Path | None) -> dict[str, Any]:
    command = [sys.executable, "-m", "benchmarks.prune_suite", "--report", "-", "--one", name, "--exporter", exporter]
    command += ["--models", str(models)] if models else []
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False)
    except subprocess.TimeoutExpired:
        return {"outcome": "too slow", "detail": f"more than {SECONDS} s"}
    try:
        answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    except (IndexError, ValueError):
        return {"outcome": "failed", "detail": f"the process died: {done.stderr.strip()[-300:]}"}
    return answer


def _one(name: str, exporter: str, models: Path | None) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="prune_suite_") as folder:
        path = (models or Path(folder)) / f"{name.replace('/', '-')}-{exporter}.onnx"
        if not path.exists():
            from benchmarks.free_export import export

            path.parent.mkdir(parents=True, exist_ok=True)
            try:
                export(name, exporter, path)
            except Exception as error:  # what torch cannot export is torch's affair
                return {"outcome": "not exported", "detail": f"{type(error).__name__}: {str(error)[:200]}"}
        return outcome_of(path)


def _read(report: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in report.read_text().splitlines()] if report.exists() else []


def _table(entries: list[dict[str, Any]]) -> str:
    """Counts by library, then a line for each model that was not pruned."""
    columns = sorted({(entry["name"].split("/")[0], entry["exporter"]) for entry in entries})
    of = {
        column: [one for one in entries if (one["name"].split("/")[0], one["exporter"]) == column] for column in columns
    }
    words = sorted({entry["outcome"] for entry in entries})
    rows: list[list[Any]] = [
        [word, *(Counter(e["outcome"] for e in of[column])[word] for column in columns)] for word in words
    ]
    for label, key in (
        ("multiply-adds removed, median", "multiply_adds"),
        ("parameters removed, median", "parameters"),
    ):
        rows.append([label, *(_median([e[key] for e in of[column] if key in e]) for column in columns)])
    slowest = [max((e["analysis"] for e in of[column] if "analysis" in e), default=0.0) for column in columns]
    rows.append(["slowest analysis", *(f"{seconds:.1f} s" for seconds in slowest)])
    lines = [tabulate(rows, headers=["outcome", *map(", ".join, columns)], tablefmt="github")]
    lines += [
        f"{e['name']} ({e['exporter']}): {e['outcome']}: {e.get('detail', '')} {'; '.join(e.get('reasons', []))}"
        for e in entries
        if e["outcome"] != "pruned"
    ]
    return "\n".join(lines)


def _median(shares: list[float]) -> str:
    return f"{sorted(shares)[len(shares) // 2]:.0%}" if shares else ""


if __name__ == "__main__":
    main()
