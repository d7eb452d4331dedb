"""``amct_onnx prune``, and what ``apply`` and ``inspect`` say of pruning."""

from __future__ import annotations

import argparse

from amct_onnx.analyse.input_shapes import input_shape_text, parse_input_shape
from amct_onnx.api import PruneReport, PruneResult, prune, restore_pruned
from amct_onnx.api.prune import prune_groups
from amct_onnx.api.prune_result import ENDINGS, GroupSummary
from amct_onnx.api.result import SavedFiles
from amct_onnx.api.saving import check_outputs, prefixed_paths
from amct_onnx.cli.console import Console
from amct_onnx.cli.data_flags import IMAGE_FLAGS, feeds_from
from amct_onnx.cli.report import show_structure
from amct_onnx.cli.restoring import record_to_keep
from amct_onnx.cli.trials import check_trials, say_losses
from amct_onnx.cli.words import few
from amct_onnx.config.auto_prune import load_auto_prune
from amct_onnx.errors import UsageError
from amct_onnx.record import LoadedRecord
from amct_onnx.wording import counted

_NEEDING_DATA = ("data_types", *IMAGE_FLAGS, "no_recover", "check_snr", "no_trial")


def run(arguments: argparse.Namespace, console: Console) -> int:
    """Choose channels, take them out, save, report."""
    auto = None if arguments.auto_config is None else load_auto_prune(arguments.auto_config)
    feeds = feeds_from(arguments, needing=_NEEDING_DATA)
    inputs = [*(feeds.files if feeds else ()), *([arguments.config] if arguments.config else [])]
    inputs += auto.files if auto else ()
    outputs = prefixed_paths(arguments.output, ENDINGS)
    if arguments.save_config:
        outputs["config"] = arguments.save_config
    check_outputs(outputs, [arguments.model, *inputs])
    if arguments.check_snr is not None and arguments.no_trial:
        raise UsageError("--check-snr: nothing is tried with --no-trial; drop one of them")
    result = prune(
        arguments.model,
        config=arguments.config,
        auto_config=auto,
        data=feeds,
        ratio=arguments.ratio,
        saving=arguments.saving,
        ascend_optimized=arguments.ascend_optimized,
        skip=arguments.skip,
        importance=arguments.importance,
        recover=False if arguments.no_recover else None,
        trial=not arguments.no_trial,
        input_shapes=None if feeds else _shapes(arguments),
        progress=console.progress("fitting", len(feeds)) if feeds else None,
    )
    paths = result.save(arguments.output, protect=inputs, config=arguments.save_config)
    untried = "" if feeds else "that takes --data"
    _show(console, result, paths, is_fitted=bool(result.report.fitted), untried=untried)
    return check_trials(console, result.report.trials, arguments.check_snr)


def run_restore(arguments: argparse.Namespace, console: Console, record: LoadedRecord) -> int:
    """Take out what a record names."""
    paths = prefixed_paths(arguments.output, ENDINGS)
    keep = record_to_keep(arguments, paths)
    result = restore_pruned(
        arguments.model,
        record,
        structure_only=bool(arguments.structure_only),
        input_shapes=_shapes(arguments),
    )
    is_fitted = record.record.is_fitted and not arguments.structure_only
    _show(console, result, result.save(arguments.output, keep=keep), is_fitted=is_fitted)
    return 0


def run_inspect(arguments: argparse.Namespace, console: Console) -> int:
    """Show the groups of a model."""
    report = prune_groups(arguments.model, input_shapes=_shapes(arguments))
    console.result(report.to_dict())
    if console.as_json:
        return 0
    rows = [
        (
            few(group.layers),
            group.channels,
            f"{group.parameters:,}",
            f"{group.multiply_adds:,}",
            _verdict(group),
        )
        for group in report.groups
    ]
    console.table(("layers", "channels", "parameters", "multiply-adds", "prunable"), rows)
    console.say("parameters and multiply-adds: of the layers that make the channels and of those that read them")
    free = sum(group.is_prunable for group in report.groups)
    console.say(f"{free} of {counted(len(report.groups), 'group')} can be pruned; {_costs(report)}")
    for note in report.notes:
        console.say(f"note: {note}")
    return 0


def _verdict(group: GroupSummary) -> str:
    if not group.is_prunable:
        return f"no: {group.reason}"
    mixed = f", approximate ({few(group.approximate)} mix them)" if group.approximate else ""
    return (f"in part: {group.reason}" if group.reason else "yes") + mixed


def _costs(report: PruneReport) -> str:
    before = report.before
    return f"{before.parameters:,} parameters, {before.multiply_adds:,} multiply-adds in one sample{_sizes(report)}"


def _sizes(report: PruneReport) -> str:
    """The sizes that free ones were taken as, on which multiply-adds depend."""
    return f", with {input_shape_text(report.sizes)}" if report.sizes else ""


def _shapes(arguments: argparse.Namespace) -> dict[str, tuple[int, ...]] | None:
    return parse_input_shape(arguments.input_shape) if arguments.input_shape is not None else None


def _show(console: Console, result: PruneResult, paths: SavedFiles, *, is_fitted: bool, untried: str = "") -> None:
    """Tell what went, what could not, how it does (or why that is not known), and which files were written."""
    report = result.report
    show_pruned(console, report)
    show_structure(console, report, paths, is_fitted=is_fitted, untried=untried)


def show_pruned(console: Console, report: PruneReport) -> None:
    """Tell which channels went, and what could not."""
    before, after = report.before, report.after
    pruned = [group for group in report.groups if group.removed]
    layers = sum(len(group.layers) for group in pruned)
    console.say(f"pruned {counted(layers, 'layer')} in {counted(len(pruned), 'group')}")
    console.say(f"parameters {_change(before.parameters, after.parameters)}")
    console.say(f"multiply-adds of one sample {_change(before.multiply_adds, after.multiply_adds)}{_sizes(report)}")
    for group in pruned:
        if console.verbose:
            console.say(f"  {few(group.layers)}: {group.channels} -> {group.channels - group.removed}")
    _show_left(console, [group for group in report.groups if not group.removed])
    if report.fitted:
        console.say(f"fitted {counted(len(report.fitted), 'layer')} to the float model's results")
        say_losses(console, report.losses)
    mixing = {name: None for group in pruned for name in group.approximate}
    if mixing:
        console.say(f"note: {few(mixing)} mix channels, so results change for those that stay, too")


def _show_left(console: Console, groups: list[GroupSummary]) -> None:
    if not groups:
        return
    console.say(f"left whole ({counted(sum(len(group.layers) for group in groups), 'layer')}):")
    reasons: dict[str, list[str]] = {}
    for group in groups:
        reasons.setdefault(group.reason or "the record does not prune it", []).extend(group.layers)
    for reason, names in reasons.items():
        console.say(f"  {few(names)}: {reason}")


def _change(before: int, after: int) -> str:
    return f"{before:,} -> {after:,}" + (f" ({after / before - 1:+.0%})" if before else "")
