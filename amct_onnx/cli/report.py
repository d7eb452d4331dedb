"""A compression result as text and as JSON."""

from __future__ import annotations

import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from amct_onnx.api import CompressionResult, PruneReport, Report, SavedFiles, SparsifyReport
from amct_onnx.cli.console import Console
from amct_onnx.cli.trials import say_unfitted, show_trials
from amct_onnx.cli.words import few, grouped
from amct_onnx.passes.deploy_findings import DeployFinding
from amct_onnx.rewrite import OutputForm
from amct_onnx.runtime.machine import saturation_note
from amct_onnx.wording import counted


def show_result(console: Console, result: CompressionResult, paths: SavedFiles) -> None:
    """Tell what was done, what was not and why, and which files were written."""
    report = result.report
    by_type: dict[str, int] = {}
    for layer in report.layers:
        by_type[layer.op_type] = by_type.get(layer.op_type, 0) + 1
    kinds = ", ".join(f"{count} {op_type}" for op_type, count in by_type.items())
    console.say(f"quantized {counted(len(report.layers), 'layer')} ({kinds or 'none'})")
    if report.inputs:
        named = few(f"{entry.node}:{entry.input_index}" for entry in report.inputs)
        console.say(f"quantized {counted(len(report.inputs), 'single input')} (node:index): {named}")
    if report.qdq_tensors:
        console.say(f"QDQ form: {counted(report.qdq_tensors, 'further tensor')} quantized")
    show_refusals(console, report)
    show_trials(console, report.trials)
    for note in report.notes:
        console.say(f"note: {note}")
    show_deploy_findings(console, report.deploy)
    machine = saturation_note() if OutputForm.QDQ in result.models else None
    if machine:
        console.say(f"note: {machine}")
    if console.verbose:
        show_timings(console, report, paths.seconds)
    show_files(console, paths)


def show_structure(
    console: Console, report: PruneReport | SparsifyReport, paths: SavedFiles, *, is_fitted: bool, untried: str
) -> None:
    """How a model that lost channels or weights does (or why that is not known), what to know, and the files."""
    show_trials(console, report.trials)
    if not is_fitted:
        say_unfitted(console)
    if untried:
        console.say(f"not tried beside the float model: {untried}")
    for note in report.notes:
        console.say(f"note: {note}")
    show_files(console, paths)
    console.result(finite({**report.to_dict(), "files": {kind: str(path) for kind, path in paths.items()}}))


def show_files(console: Console, paths: SavedFiles) -> None:
    """List what was written, with sizes."""
    console.say("files written:")
    for kind, path in paths.items():
        weights = paths.weights.get(kind, ())
        beside = f" + {counted(len(weights), 'weight file')} beside it, {readable(_total(weights))}" if weights else ""
        console.say(f"  {path} ({file_size(path)}{beside})")


def show_refusals(console: Console, report: Report) -> None:
    """List what was not compressed, with reasons."""
    if not report.refusals:
        console.say("left in float: nothing")
        return
    console.say(f"left in float or not fused ({len(report.refusals)}):")
    found = [((refusal.op_type, refusal.remedy), refusal.reason, refusal.node) for refusal in report.refusals]
    for (op_type, remedy), reason, names in grouped(found):
        advice = f" (remedy: {remedy})" if remedy else ""
        console.say(f"  {op_type} {few(names)}: {reason}{advice}")


def show_deploy_findings(console: Console, findings: Iterable[DeployFinding]) -> None:
    """List what the Ascend compiler will find, findings alike together."""
    found = [((finding.stops, finding.remedy), finding.message, finding.node) for finding in findings]
    for (stops, remedy), message, names in grouped(found):
        where = f"{few(names)}: " if names[0] else ""
        kind = "stops the Ascend compiler" if stops else "for the Ascend compiler"
        console.say(f"{kind}: {where}{message} (remedy: {remedy})")


def show_timings(console: Console, report: Report, writing: float) -> None:
    """Seconds of every step, and of every pass."""
    steps = [*((step, seconds) for step, seconds in report.seconds.items()), ("writing", writing)]
    console.table(("step", "seconds"), [(step, f"{seconds:.2f}") for step, seconds in steps])
    rows = [
        (form, timing.name, f"{timing.seconds * 1e3:.1f} ms", timing.changed)
        for form, timings in report.timings.items()
        for timing in timings
    ]
    console.table(("form", "pass", "time", "changed"), rows)


def result_json(result: CompressionResult, paths: SavedFiles) -> dict[str, Any]:
    """The JSON object of ``quantize`` and ``apply``."""
    data = finite(result.report.to_dict())
    weights = {kind: [str(file) for file in files] for kind, files in paths.weights.items()}
    return {"files": {kind: str(path) for kind, path in paths.items()}, "weight_files": weights, **data}


def finite(value: Any) -> Any:
    """JSON has no infinity and no NaN: write them as strings."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, dict):
        return {key: finite(item) for key, item in value.items()}
    return [finite(item) for item in value] if isinstance(value, list | tuple) else value


def file_size(path: Path) -> str:
    """Size of a file in readable units."""
    return readable(path.stat().st_size)


def _total(files: Iterable[Path]) -> int:
    return sum(file.stat().st_size for file in files)


def readable(size: float) -> str:
    """A number of bytes in readable units."""
    for unit in ("B", "kB", "MB"):
        if size < 1000:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.2f} GB"
