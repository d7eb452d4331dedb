"""``amct_onnx sparsify``, and what ``apply`` says of masks."""

from __future__ import annotations

import argparse

from amct_onnx.analyse.input_shapes import parse_input_shape
from amct_onnx.api import SparsifyReport, SparsifyResult, restore_sparse, sparsify
from amct_onnx.api.result import SavedFiles
from amct_onnx.api.saving import check_outputs, prefixed_paths
from amct_onnx.api.sparse_result import ENDINGS
from amct_onnx.cli.console import Console
from amct_onnx.cli.data_flags import IMAGE_FLAGS, feeds_from
from amct_onnx.cli.flags import refuse_flags
from amct_onnx.cli.report import show_structure
from amct_onnx.cli.restoring import record_to_keep
from amct_onnx.cli.trials import check_trials, say_losses
from amct_onnx.cli.words import few, together
from amct_onnx.errors import UsageError
from amct_onnx.record import LoadedRecord
from amct_onnx.wording import counted

_NEEDING_DATA = ("data_types", *IMAGE_FLAGS, "check_snr", "no_trial")


def run(arguments: argparse.Namespace, console: Console) -> int:
    """Choose weights, set the others to zero, save, report."""
    feeds = feeds_from(arguments, needing=_NEEDING_DATA)
    inputs = [*(feeds.files if feeds else ()), *([arguments.config] if arguments.config else [])]
    outputs = prefixed_paths(arguments.output, ENDINGS)
    if arguments.save_config:
        outputs["config"] = arguments.save_config
    check_outputs(outputs, [arguments.model, *inputs])
    if arguments.check_snr is not None and arguments.no_trial:
        raise UsageError("--check-snr: nothing is tried with --no-trial; drop one of them")
    shapes = parse_input_shape(arguments.input_shape) if arguments.input_shape and not feeds else None
    result = sparsify(
        arguments.model,
        feeds,
        selection=arguments.selection,
        saving=arguments.saving,
        skip=arguments.skip,
        config=arguments.config,
        trial=not arguments.no_trial,
        input_shapes=shapes,
        progress=console.progress("thinning out", len(feeds)) if feeds else None,
    )
    paths = result.save(arguments.output, protect=inputs, config=arguments.save_config)
    _show(console, result, paths, is_fitted=result.report.is_fitted, untried="" if feeds else "that takes --data")
    return check_trials(console, result.report.trials, arguments.check_snr)


def run_restore(arguments: argparse.Namespace, console: Console, record: LoadedRecord) -> int:
    """Thin out what a record names."""
    refuse_flags(arguments, ("input_shape",), "concerns channels, and the record holds masks alone")
    paths = prefixed_paths(arguments.output, ENDINGS)
    keep = record_to_keep(arguments, paths)
    result = restore_sparse(arguments.model, record, structure_only=bool(arguments.structure_only))
    is_fitted = record.record.is_fitted and not arguments.structure_only
    _show(console, result, result.save(arguments.output, keep=keep), is_fitted=is_fitted)
    return 0


def _show(console: Console, result: SparsifyResult, paths: SavedFiles, *, is_fitted: bool, untried: str = "") -> None:
    """Tell what became zero, what could not, how it does (or why that is not known), and which files were written."""
    report = result.report
    show_thinned(console, report)
    show_structure(console, report, paths, is_fitted=is_fitted, untried=untried)


def show_thinned(console: Console, report: SparsifyReport) -> None:
    """Tell how many weights became zero, and what could not."""
    layers = counted(len(report.layers), "layer")
    console.say(f"thinned out {layers}: {report.zeros:,} of their {report.weights:,} weights are zero")
    if report.saving is not None:
        console.say(f"zeros save {report.saving:.1%} of the multiply-adds of the model")
    losses = {layer.name: layer.lost for layer in report.layers if layer.lost is not None}
    if losses:
        console.say(f"the other weights of {counted(len(losses), 'layer')} make up for those that went")
        say_losses(console, losses)
    _show_reasons(console, "by size alone", {layer.name: layer.reason for layer in report.layers if layer.reason})
    _show_reasons(console, "left as they are", {one.node: one.reason for one in report.refusals})


def _show_reasons(console: Console, what: str, reasons: dict[str, str]) -> None:
    if not reasons:
        return
    console.say(f"{what} ({counted(len(reasons), 'layer')}):")
    for reason, names in together(reasons.items()):
        console.say(f"  {few(names)}: {reason}")
