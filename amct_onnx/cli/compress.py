"""``amct_onnx compress``."""

from __future__ import annotations

import argparse
from typing import Any

from amct_onnx.api import CombinedResult, compress
from amct_onnx.api.result import SavedFiles
from amct_onnx.api.saving import check_outputs, modified_path, output_paths
from amct_onnx.cli.console import Console
from amct_onnx.cli.data_flags import feeds_from
from amct_onnx.cli.prune import show_pruned
from amct_onnx.cli.quantize import parse_forms
from amct_onnx.cli.report import finite, result_json, show_files, show_result
from amct_onnx.cli.sparsify import show_thinned
from amct_onnx.cli.trials import check_trials, say_unfitted, show_trials
from amct_onnx.errors import UsageError
from amct_onnx.passes.insert_qdq import QdqTarget


def run(arguments: argparse.Namespace, console: Console) -> int:
    """Do what a retrain config asks for, save, report."""
    forms = parse_forms(arguments.format)
    if arguments.check_snr is not None and arguments.no_trial:
        raise UsageError("--check-snr: nothing is tried with --no-trial; drop one of them")
    feeds = feeds_from(arguments)
    inputs = [*(feeds.files if feeds else ()), arguments.config]
    outputs = {**output_paths(arguments.output, forms), "modified": modified_path(arguments.output)}
    check_outputs(outputs, [arguments.model, *inputs])
    done = compress(
        arguments.model,
        feeds,
        config=arguments.config,
        formats=forms,
        qdq_target=arguments.qdq_target or QdqTarget.ONNXRUNTIME,
        importance=arguments.importance,
        selection=arguments.selection,
        recover=not arguments.no_recover,
        trial=not arguments.no_trial,
        progress=console.progress("compressing", len(feeds) if feeds else None),
    )
    paths = done.save(arguments.output, protect=inputs)
    _show(console, done, paths)
    console.result(finite(_as_data(done, paths)))
    return check_trials(console, done.result.report.trials, arguments.check_snr)


def _show(console: Console, done: CombinedResult, paths: SavedFiles) -> None:
    if done.pruned is not None:
        show_pruned(console, done.pruned)
    if done.thinned is not None:
        show_thinned(console, done.thinned)
    if not (done.result.record.is_fitted or done.result.modified is None):
        say_unfitted(console)
    for part in (done.pruned, done.thinned):
        for note in part.notes if part is not None else ():
            console.say(f"note: {note}")
    if done.result.models:
        show_result(console, done.result, paths)
    else:
        console.say("the config quantizes no layer")
        show_trials(console, done.result.report.trials)
        for note in done.result.report.notes:
            console.say(f"note: {note}")
        show_files(console, paths)


def _as_data(done: CombinedResult, paths: SavedFiles) -> dict[str, Any]:
    return {
        **result_json(done.result, paths),
        "pruned": None if done.pruned is None else done.pruned.to_dict(),
        "thinned": None if done.thinned is None else done.thinned.to_dict(),
    }
