"""All commands and flags."""

from __future__ import annotations

import argparse
import math
from pathlib import Path

from amct_onnx import __version__
from amct_onnx.analyse.pruning.options import Importance
from amct_onnx.analyse.sparsity.options import Selection
from amct_onnx.cli import (
    apply,
    calibration,
    check_deploy,
    compress,
    config,
    demo,
    inspect,
    prune,
    quantize,
    record,
    sparsify,
)
from amct_onnx.cli.data_flags import add_data_flags
from amct_onnx.cli.strict_parser import StrictParser
from amct_onnx.config import ActivationAlgorithm, WeightAlgorithm
from amct_onnx.passes.insert_qdq import QdqTarget
from amct_onnx.rewrite import OutputForm

_FORMS = [form.value for form in OutputForm]


def build_parser() -> argparse.ArgumentParser:
    """The parser; every command leaves its function in ``run``."""
    parser = StrictParser(
        prog="amct_onnx",
        description="Compress ONNX models after export: for Ascend NPUs and any runtime that reads QDQ.",
    )
    parser.add_argument("--version", action="version", version=f"amct_onnx {__version__}")
    common = _common()
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")
    _add_quantize(commands, common)
    _add_apply(commands, common)
    _add_prune(commands, common)
    _add_sparsify(commands, common)
    _add_compress(commands, common)
    _add_inspect(commands, common)
    _add_check_deploy(commands, common)
    _add_record(commands, common)
    _add_config(commands, common)
    _add_calibration(commands, common)
    _add_demo(commands, common)
    return parser


def _decibels(text: str) -> float:
    value = float(text)
    if math.isnan(value):
        raise ValueError("not a number")
    return value


def _common() -> argparse.ArgumentParser:
    common = argparse.ArgumentParser(add_help=False)
    group = common.add_argument_group("output")
    loudness = group.add_mutually_exclusive_group()
    loudness.add_argument("-v", "--verbose", action="store_true", help="show details and the time of every graph pass")
    loudness.add_argument("-q", "--quiet", action="store_true", help="show nothing but errors (and JSON, if asked for)")
    group.add_argument("--traceback", action="store_true", help="show where an error comes from")
    return common


def _add_json(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print one JSON object on stdout, all else on stderr")


def _add_forms(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--format",
        metavar="LIST",
        help=f"output forms, separated by commas, out of {', '.join(_FORMS)} (default: all)",
    )
    parser.add_argument(
        "--qdq-target",
        choices=[target.value for target in QdqTarget],
        help="runtime that the QDQ model is for (default: onnxruntime)",
    )
    parser.add_argument(
        "--qdq-recurrent",
        action="store_true",
        default=None,
        help="quantize LSTM, GRU and RNN in the QDQ model, too: smaller, not faster",
    )


def _add_trial(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--check-snr",
        type=_decibels,
        metavar="DB",
        help="exit with 1 when a model's output signal-to-noise ratio on the first feeds is below this",
    )
    parser.add_argument(
        "--no-trial", action="store_true", default=None, help="do not run the compressed models on the first feeds"
    )


def _add_output(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "-o", "--output", metavar="PREFIX", required=True, help="folder and beginning of the file names"
    )


def _add_quantize(commands: argparse._SubParsersAction, common: argparse.ArgumentParser) -> None:  # type: ignore[type-arg]
    parser = commands.add_parser("quantize", parents=[common], help="quantize a model to int8 with sample data")
    parser.add_argument("model", type=Path, metavar="MODEL", help="the float model (.onnx)")
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument(
        "--data",
        metavar="PATH",
        help="a .npz with one feed (arrays named by input), a folder of them, .npy for a model of one input; a folder "
        "of images; or folders of raw .bin files",
    )
    source.add_argument(
        "--statistics",
        type=Path,
        nargs="+",
        metavar="FILE",
        help="statistics of earlier runs instead of data; several are joined (shards of one data set)",
    )
    _add_output(parser)
    add_data_flags(parser)
    _add_forms(parser)
    parser.add_argument(
        "--save-statistics",
        type=Path,
        metavar="FILE",
        help="also write the calibration statistics (.npz) for --statistics",
    )
    parser.add_argument(
        "--config",
        type=Path,
        metavar="FILE",
        help="an AMCT config, .cfg or JSON; takes the place of --act, --weights, --skip, --symmetric, "
        "--gemm-per-channel and --dmq",
    )
    parser.add_argument(
        "--act",
        choices=[algorithm.value for algorithm in ActivationAlgorithm],
        help="how activation ranges are chosen (default: mse)",
    )
    parser.add_argument(
        "--weights",
        choices=[algorithm.value for algorithm in WeightAlgorithm],
        help="how weight scales are chosen: least squares, or AMCT's symmetric min-max (default: mse)",
    )
    parser.add_argument(
        "--skip", action="append", default=[], metavar="NAME", help="leave this layer float (repeatable)"
    )
    parser.add_argument("--symmetric", action="store_true", help="quantize activations without zero point")
    parser.add_argument(
        "--gemm-per-channel",
        action="store_true",
        default=None,
        help="one weight scale per output channel for Gemm and MatMul, too (default: only without the ascend form)",
    )
    parser.add_argument(
        "--dmq",
        nargs="?",
        type=float,
        const=0.5,
        metavar="STRENGTH",
        help="balance activations against weights with this migration strength, 0.2 to 0.8 (default: 0.5)",
    )
    parser.add_argument(
        "--reduce-range",
        action="store_true",
        help="7-bit weights, for x86 machines without VNNI whose kernels saturate",
    )
    parser.add_argument(
        "--matmul-inputs",
        action="store_true",
        help="in the ascend and fake_quant forms, too, quantize both inputs of products of two computed tensors "
        "(attention)",
    )
    _add_trial(parser)
    _add_json(parser)
    parser.set_defaults(run=quantize.run)


def _add_calibration(commands: argparse._SubParsersAction, common: argparse.ArgumentParser) -> None:  # type: ignore[type-arg]
    parser = commands.add_parser("calibration", parents=[common], help="quantize with AMCT's own flags")
    calibration.add_flags(parser)
    parser.set_defaults(run=calibration.run)


def _add_apply(commands: argparse._SubParsersAction, common: argparse.ArgumentParser) -> None:  # type: ignore[type-arg]
    parser = commands.add_parser("apply", parents=[common], help="rewrite a model by a record, without data")
    parser.add_argument("model", type=Path, metavar="MODEL", help="the model the record was made for")
    parser.add_argument("--record", type=Path, required=True, metavar="FILE", help="the record (*_record.txt)")
    parser.add_argument(
        "--tensors", type=Path, metavar="FILE", help="the tensors file (default: *_tensors.txt beside *_record.txt)"
    )
    _add_output(parser)
    _add_forms(parser)
    parser.add_argument("--strict", action="store_true", help="treat warnings about the files as errors")
    parser.add_argument(
        "--structure-only",
        action="store_true",
        default=None,
        help="take a prune record for a model of the same structure with other weights; what prune fitted is lost",
    )
    _add_input_shape(parser)
    _add_json(parser)
    parser.set_defaults(run=apply.run)


def _add_prune(commands: argparse._SubParsersAction, common: argparse.ArgumentParser) -> None:  # type: ignore[type-arg]
    parser = commands.add_parser("prune", parents=[common], help="take the least important channels out of a model")
    parser.add_argument("model", type=Path, metavar="MODEL", help="the float model (.onnx)")
    _add_output(parser)
    parser.add_argument("--ratio", type=float, metavar="SHARE", help="share of each layer's output channels that goes")
    parser.add_argument(
        "--saving",
        type=float,
        metavar="SHARE",
        help="share of the model's multiply-adds that goes; how much of each layer is found from --data",
    )
    parser.add_argument(
        "--data",
        metavar="PATH",
        help="sample data, as for quantize: channels are ranked by it, and layers that lose inputs fitted again",
    )
    parser.add_argument(
        "--importance",
        choices=[importance.value for importance in Importance],
        help="how channels are ranked: l2 and bn_scale by weights, the others by --data (default: l2; with --data "
        "reconstruction)",
    )
    parser.add_argument(
        "--save-config", type=Path, metavar="FILE", help="also write a .cfg that prunes as much of each layer"
    )
    parser.add_argument(
        "--no-recover", action="store_true", default=None, help="with --data: leave the layers' weights as they are"
    )
    _add_trial(parser)
    parser.add_argument(
        "--config",
        type=Path,
        metavar="FILE",
        help="an AMCT retrain config, .cfg or JSON, with a prune_config; takes the place of --ratio, "
        "--ascend-optimized and --skip",
    )
    parser.add_argument(
        "--auto-config",
        type=Path,
        metavar="FILE",
        help="an AMCT config of a search (.cfg) with a compress_ratio; takes the place of --saving, and of all that "
        "--config does",
    )
    parser.add_argument(
        "--ascend-optimized",
        action="store_true",
        help="leave a multiple of 16 channels (with --saving a multiple of 8 stays without this)",
    )
    parser.add_argument(
        "--skip", action="append", default=[], metavar="NAME", help="leave this layer's channels whole (repeatable)"
    )
    add_data_flags(parser, takes_sizes=True)
    _add_json(parser)
    parser.set_defaults(run=prune.run)


def _add_sparsify(commands: argparse._SubParsersAction, common: argparse.ArgumentParser) -> None:  # type: ignore[type-arg]
    parser = commands.add_parser("sparsify", parents=[common], help="set two of every four weights to zero")
    parser.add_argument("model", type=Path, metavar="MODEL", help="the float model (.onnx)")
    _add_output(parser)
    parser.add_argument(
        "--data",
        metavar="PATH",
        help="sample data, as for quantize: the weights that stay are chosen by it, and make up for the others",
    )
    parser.add_argument(
        "--selection",
        choices=[selection.value for selection in Selection],
        help="which weights stay: the largest (l1, the default), or those whose loss the others make up for best "
        "(compensated, with --data the default)",
    )
    parser.add_argument(
        "--saving",
        type=float,
        metavar="SHARE",
        help="share of the model's multiply-adds that goes, up to about 0.5; which layers are thinned out for it is "
        "found from --data",
    )
    parser.add_argument(
        "--save-config", type=Path, metavar="FILE", help="also write a .cfg that thins out the same layers"
    )
    _add_trial(parser)
    parser.add_argument(
        "--config",
        type=Path,
        metavar="FILE",
        help="an AMCT retrain config, .cfg or JSON, with an n_out_of_m_pruner; takes the place of --saving and --skip",
    )
    parser.add_argument(
        "--skip", action="append", default=[], metavar="NAME", help="leave this layer as it is (repeatable)"
    )
    add_data_flags(parser, takes_sizes=True)
    _add_json(parser)
    parser.set_defaults(run=sparsify.run)


def _add_compress(commands: argparse._SubParsersAction, common: argparse.ArgumentParser) -> None:  # type: ignore[type-arg]
    parser = commands.add_parser(
        "compress", parents=[common], help="prune, thin out and quantize a model as one retrain config says"
    )
    parser.add_argument("model", type=Path, metavar="MODEL", help="the float model (.onnx)")
    parser.add_argument(
        "--config", type=Path, metavar="FILE", required=True, help="an AMCT retrain config, .cfg or JSON"
    )
    parser.add_argument("--data", metavar="PATH", required=True, help="sample data, as for quantize")
    _add_output(parser)
    _add_forms(parser)
    parser.add_argument(
        "--importance",
        choices=[importance.value for importance in Importance],
        help="how channels are ranked: l2 and bn_scale by weights, the others by --data (default: reconstruction)",
    )
    parser.add_argument(
        "--selection",
        choices=[selection.value for selection in Selection],
        help="which weights stay of four: the largest (l1, with --no-recover the default), or those whose loss the "
        "others make up for best (compensated, the default)",
    )
    parser.add_argument(
        "--no-recover", action="store_true", help="change no weight that stays, so that the record alone says all"
    )
    _add_trial(parser)
    add_data_flags(parser)
    _add_json(parser)
    parser.set_defaults(run=compress.run)


def _add_input_shape(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--input-shape", metavar="SHAPES", help='sizes to take for free ones, like "x:1,3,224,224;y:1,8"'
    )


def _add_inspect(commands: argparse._SubParsersAction, common: argparse.ArgumentParser) -> None:  # type: ignore[type-arg]
    parser = commands.add_parser("inspect", parents=[common], help="show what can and cannot be compressed, and why")
    parser.add_argument("model", type=Path, metavar="MODEL")
    _add_input_shape(parser)
    parser.add_argument(
        "--prune", action="store_true", help="show the groups of channels that go together, and why others stay"
    )
    _add_json(parser)
    parser.set_defaults(run=inspect.run)


def _add_check_deploy(commands: argparse._SubParsersAction, common: argparse.ArgumentParser) -> None:  # type: ignore[type-arg]
    parser = commands.add_parser(
        "check-deploy", parents=[common], help="show what the Ascend compiler will ask of a deploy model"
    )
    parser.add_argument("model", type=Path, metavar="FILE", help="a *_deploy_model.onnx, of this tool or of AMCT")
    _add_json(parser)
    parser.set_defaults(run=check_deploy.run)


def _add_record(commands: argparse._SubParsersAction, common: argparse.ArgumentParser) -> None:  # type: ignore[type-arg]
    parser = commands.add_parser("record", help="check or show a record file")
    actions = parser.add_subparsers(title="actions", required=True, metavar="ACTION")
    check = actions.add_parser("check", parents=[common], help="check every rule; warnings count as faults")
    check.add_argument("file", type=Path, metavar="FILE")
    check.add_argument("--model", type=Path, metavar="MODEL", help="also check that the record fits this model")
    check.add_argument(
        "--tensors",
        type=Path,
        metavar="FILE",
        help="its tensors file, which quantizes second inputs (default: *_tensors.txt beside *_record.txt)",
    )
    _add_json(check)
    check.set_defaults(run=record.run_check)
    show = actions.add_parser("show", parents=[common], help="show the entries as a table")
    show.add_argument("file", type=Path, metavar="FILE")
    _add_json(show)
    show.set_defaults(run=record.run_show)


def _add_config(commands: argparse._SubParsersAction, common: argparse.ArgumentParser) -> None:  # type: ignore[type-arg]
    parser = commands.add_parser("config", help="show what an AMCT config says")
    actions = parser.add_subparsers(title="actions", required=True, metavar="ACTION")
    show = actions.add_parser("show", parents=[common], help="show what it says about each layer of a model, and where")
    show.add_argument("file", type=Path, metavar="CFG", help="a simple config (.cfg) or a JSON config")
    show.add_argument("--model", type=Path, metavar="MODEL", required=True, help="the model it is for")
    _add_input_shape(show)
    _add_json(show)
    show.set_defaults(run=config.run_show)


def _add_demo(commands: argparse._SubParsersAction, common: argparse.ArgumentParser) -> None:  # type: ignore[type-arg]
    parser = commands.add_parser("demo", parents=[common], help="compress the packaged model and compare with float")
    parser.add_argument(
        "-o",
        "--output",
        metavar="PREFIX",
        default="amct_onnx_demo/mnist_mobilenet",
        help="where to write (default: amct_onnx_demo/mnist_mobilenet)",
    )
    _add_json(parser)
    parser.set_defaults(run=demo.run)
