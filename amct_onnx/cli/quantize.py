"""``amct_onnx quantize``."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from amct_onnx.analyse.feed_files import find_feeds
from amct_onnx.api import (
    Calibration,
    CompressionResult,
    load_calibration,
    merge_calibrations,
    quantize,
    save_calibration,
)
from amct_onnx.api.result import output_paths
from amct_onnx.cli.console import Console
from amct_onnx.cli.report import result_json, show_result
from amct_onnx.errors import UsageError
from amct_onnx.rewrite import OutputForm


def run(arguments: argparse.Namespace, console: Console) -> int:
    """Quantize, save, report."""
    forms = parse_forms(arguments.format)
    output_paths(arguments.output, forms)
    feeds = find_feeds(arguments.data) if arguments.data else None
    statistics = (
        merge_calibrations([load_calibration(path) for path in arguments.statistics or []]) if not feeds else None
    )
    result = quantize(
        arguments.model,
        feeds or statistics,
        formats=forms,
        act=arguments.act,
        weights=arguments.weights,
        skip=arguments.skip,
        symmetric=arguments.symmetric,
        qdq_target=arguments.qdq_target,
        gemm_per_channel=arguments.gemm_per_channel,
        reduce_range=arguments.reduce_range,
        progress=console.progress("calibrating", len(feeds) if feeds else None),
    )
    protect = [*(feeds.files if feeds else arguments.statistics)]
    paths = result.save(arguments.output, protect=protect)
    if arguments.save_statistics and result.calibration:
        paths["statistics"] = _save_statistics(
            result.calibration, arguments.save_statistics, [arguments.model, *protect]
        )
    show_result(console, result, paths)
    console.result(result_json(result, paths))
    return _check(result, arguments.check_snr, console)


def _save_statistics(calibration: Calibration, path: Path, inputs: Sequence[Path]) -> Path:
    if path.resolve() in {given.resolve() for given in inputs}:
        raise UsageError(
            f"{path}: the statistics would overwrite an input of the run; choose another --save-statistics"
        )
    save_calibration(calibration, path)
    return path


def _check(result: CompressionResult, wanted: float | None, console: Console) -> int:
    """1 when a model does not run, or when its signal-to-noise ratio is below what was asked for."""
    failed = False
    for trial in result.report.trials:
        too_low = wanted is not None and not (trial.snr_db is not None and trial.snr_db >= wanted)
        if trial.error or too_low:
            console.say(f"check failed: {trial.form}")
            failed = True
    return 1 if failed else 0


def parse_forms(text: str) -> list[OutputForm]:
    """The forms named in a comma-separated list."""
    names = [name.strip() for name in text.split(",") if name.strip()]
    known = {form.value: form for form in OutputForm}
    unknown = [name for name in names if name not in known]
    if unknown or not names:
        raise UsageError(f"--format: '{', '.join(unknown) or text}' is unknown; choose from {', '.join(known)}")
    return [known[name] for name in dict.fromkeys(names)]
