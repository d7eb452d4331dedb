"""``amct_onnx calibration``: AMCT's own command."""

from __future__ import annotations

import argparse
from pathlib import Path

from amct_onnx.analyse.bin_feeds import BinFeeds, parse_data_types, parse_folders
from amct_onnx.analyse.input_shapes import parse_input_shape
from amct_onnx.api.drop_in.command import calibrate_with_data, calibrate_with_evaluator
from amct_onnx.cli.console import Console
from amct_onnx.cli.report import file_size, show_result
from amct_onnx.errors import UsageError

_DATA_FLAGS = ("input_shape", "data_dir", "data_types")


def add_flags(parser: argparse.ArgumentParser) -> None:
    """AMCT's flags, under their names there."""
    required = parser.add_argument_group("always")
    required.add_argument("--model", required=True, type=Path, metavar="FILE", help="the float model (.onnx)")
    required.add_argument("--save_path", required=True, metavar="PREFIX", help="folder and beginning of the file names")
    data = parser.add_argument_group("data, all three or an evaluator")
    data.add_argument("--input_shape", metavar="SHAPES", help='"name1:n,c,h,w;name2:n,c": one entry per input')
    data.add_argument("--data_dir", metavar="FOLDERS", help='"first/;second/": one folder of .bin files per input')
    data.add_argument("--data_types", metavar="TYPES", help='"float32;int64": one per input')
    data.add_argument(
        "--evaluator",
        type=Path,
        metavar="FILE",
        help="a Python file with an object whose calibration(model_file) runs the model",
    )
    choices = parser.add_argument_group("choices, one or none")
    choices.add_argument("--calibration_config", type=Path, metavar="FILE", help="a simple config (.cfg)")
    choices.add_argument("--batch_num", type=int, metavar="N", help="number of batches (default: 1)")


def run(arguments: argparse.Namespace, console: Console) -> int:
    """Quantize as AMCT's command does."""
    _check(arguments)
    choices = {"calibration_config": arguments.calibration_config, "batch_num": arguments.batch_num or 1}
    if arguments.evaluator is not None:
        paths = calibrate_with_evaluator(arguments.model, arguments.evaluator, arguments.save_path, **choices)
        console.say("files written:")
        for path in paths.values():
            console.say(f"  {path} ({file_size(path)})")
        return 0
    shapes, dtypes = parse_input_shape(arguments.input_shape), parse_data_types(arguments.data_types)
    feeds = BinFeeds(parse_folders(arguments.data_dir), shapes, dtypes)
    result, paths = calibrate_with_data(
        arguments.model,
        feeds,
        arguments.save_path,
        files=feeds.files,
        progress=console.progress("calibrating", len(feeds)),
        **choices,
    )
    show_result(console, result, paths)
    return 1 if any(trial.error for trial in result.report.trials) else 0


def _check(arguments: argparse.Namespace) -> None:
    """What excludes and what demands each other."""
    given = [name for name in _DATA_FLAGS if getattr(arguments, name) is not None]
    for name in (*given, "save_path"):
        if not getattr(arguments, name).strip():
            raise UsageError(f"--{name} is empty; after an equals sign the value follows without a blank")
    if arguments.evaluator is not None and given:
        raise UsageError(f"--evaluator and --{given[0]} exclude each other: an evaluator brings its own data; drop one")
    if arguments.evaluator is None and len(given) < len(_DATA_FLAGS):
        missing = next(name for name in _DATA_FLAGS if name not in given)
        raise UsageError(f"--{missing} is missing; give {', '.join('--' + n for n in _DATA_FLAGS)}, or --evaluator")
    if arguments.calibration_config is not None and arguments.batch_num is not None:
        raise UsageError("--calibration_config and --batch_num exclude each other: the config says batch_num; drop one")
    if arguments.batch_num is not None and arguments.batch_num < 1:
        raise UsageError(f"--batch_num is {arguments.batch_num}; it takes 1 or more")
