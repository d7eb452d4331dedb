"""A compression result as text and as JSON."""

from __future__ import annotations

import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from amct_onnx.api import CompressionResult, Report, SavedFiles
from amct_onnx.cli.console import Console
from amct_onnx.passes.deploy_findings import DeployFinding
from amct_onnx.rewrite import OutputForm
from amct_onnx.runtime.machine import saturation_note

_NAMED = 3


def show_result(console: Console, result: CompressionResult, paths: SavedFiles) -> None:
    """Tell what was done, what was not and why, and which files were written."""
    report = result.report
    by_type: dict[str, int] = {}
    for layer in report.layers:
        by_type[layer.op_type] = by_type.get(layer.op_type, 0) + 1
    kinds = ", ".join(f"{count} {op_type}" for op_type, count in by_type.items())
    console.say(f"quantized {counted(len(report.layers), 'layer')} ({kinds or 'none'})")
    if report.inputs:
        named = ", ".join(f"{entry.node}:{entry.input_index}" for entry in report.inputs[:_NAMED])
        more = f" and {len(report.inputs) - _NAMED} more" if len(report.inputs) > _NAMED else ""
        console.say(f"quantized {len(report.inputs)} single inputs (node:index): {named}{more}")
    if report.qdq_tensors:
        console.say(f"QDQ form: {report.qdq_tensors} further tensors quantized")
    show_refusals(console, report)
    for trial in report.trials:
        outcome = f"does not run: {trial.error}" if trial.error else f"output SNR {decibels(trial.snr_db)}"
        console.say(
            f"tried {trial.form} on the first {counted(trial.feeds, 'feed')}: {outcome}{_speed(trial.speed_up)}"
        )
    for note in report.notes:
        console.say(f"note: {note}")
    show_deploy_findings(console, report.deploy)
    machine = saturation_note() if OutputForm.QDQ in result.models else None
    if machine:
        console.say(f"note: {machine}")
    if console.verbose:
        show_timings(console, report, paths.seconds)
    show_files(console, paths)


def show_files(console: Console, paths: SavedFiles) -> None:
    """List what was written, with sizes."""
    console.say("files written:")
    for kind, path in paths.items():
        weights = paths.weights.get(kind, ())
        beside = f" + {len(weights)} weight files beside it, {readable(_total(weights))}" if weights else ""
        console.say(f"  {path} ({file_size(path)}{beside})")


def counted(number: int, thing: str) -> str:
    """``1 feed``, ``4 feeds``."""
    return f"{number} {thing}" if number == 1 else f"{number} {thing}s"


def _speed(speed_up: float | None) -> str:
    if speed_up is None:
        return ""
    if speed_up >= 1:
        return f", {speed_up:.1f} times as fast as float in a few runs here"
    slower = f"slower than float in a few runs here ({speed_up:.2f} times its speed)"
    return f", {slower}: float or another runtime may serve better"


def show_refusals(console: Console, report: Report) -> None:
    """List what was not compressed, with reasons."""
    if not report.refusals:
        console.say("left in float: nothing")
        return
    console.say(f"left in float or not fused ({len(report.refusals)}):")
    groups: dict[tuple[str, str, str], list[str]] = {}
    for refusal in report.refusals:
        groups.setdefault((refusal.op_type, refusal.reason, refusal.remedy), []).append(refusal.node)
    for (op_type, reason, remedy), names in groups.items():
        more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
        advice = f" (remedy: {remedy})" if remedy else ""
        console.say(f"  {op_type} {', '.join(names[:_NAMED])}{more}: {reason}{advice}")


def show_deploy_findings(console: Console, findings: Iterable[DeployFinding]) -> None:
    """List what the Ascend compiler will find, equal findings together."""
    groups: dict[tuple[bool, str, str], list[str]] = {}
    for finding in findings:
        groups.setdefault((finding.stops, finding.message, finding.remedy), []).append(finding.node)
    for (stops, message, remedy), names in groups.items():
        more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
        where = f"{', '.join(names[:_NAMED])}{more}: " if names[0] else ""
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


def decibels(value: float | None) -> str:
    """A ratio in dB as text."""
    if value is None or math.isnan(value):
        return "not comparable"
    return "without any difference" if value == math.inf else f"{value:.1f} dB"


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
