"""``amct_onnx quantize``."""

from __future__ import annotations

import argparse

from amct_onnx.api import load_calibration, merge_calibrations, quantize, save_calibration
from amct_onnx.api.saving import check_outputs, output_paths
from amct_onnx.cli.console import Console
from amct_onnx.cli.data_flags import feeds_from
from amct_onnx.cli.report import result_json, show_result
from amct_onnx.cli.trials import check_trials
from amct_onnx.errors import UsageError
from amct_onnx.passes.insert_qdq import QdqTarget
from amct_onnx.rewrite import OutputForm


def run(arguments: argparse.Namespace, console: Console) -> int:
    """Quantize, save, report."""
    forms = parse_forms(arguments.format)
    if arguments.check_snr is not None and forms == [OutputForm.ASCEND]:
        raise UsageError("--check-snr: the ascend form does not run here; add fake_quant or qdq to --format")
    if arguments.check_snr is not None and arguments.statistics:
        raise UsageError("--check-snr: statistics hold no feeds to try the models on; give --data instead")
    if arguments.check_snr is not None and arguments.no_trial:
        raise UsageError("--check-snr: nothing is tried with --no-trial; drop one of them")
    feeds = feeds_from(arguments)
    inputs = [*(feeds.files if feeds else arguments.statistics), *([arguments.config] if arguments.config else [])]
    outputs = output_paths(arguments.output, forms)
    if arguments.save_statistics:
        outputs["statistics"] = arguments.save_statistics
    check_outputs(outputs, [arguments.model, *inputs])
    statistics = None if feeds else merge_calibrations([load_calibration(path) for path in arguments.statistics])
    result = quantize(
        arguments.model,
        feeds or statistics,
        formats=forms,
        config=arguments.config,
        act=arguments.act,
        weights=arguments.weights,
        skip=arguments.skip,
        symmetric=arguments.symmetric,
        qdq_target=arguments.qdq_target or QdqTarget.ONNXRUNTIME,
        qdq_recurrent=bool(arguments.qdq_recurrent),
        gemm_per_channel=arguments.gemm_per_channel,
        reduce_range=arguments.reduce_range,
        matmul_inputs=arguments.matmul_inputs,
        dmq=arguments.dmq,
        trial=not arguments.no_trial,
        # How many of them a config wants is known later.
        progress=console.progress("calibrating", len(feeds) if feeds and not arguments.config else None),
    )
    paths = result.save(arguments.output, protect=inputs)
    if arguments.save_statistics and result.calibration:
        save_calibration(result.calibration, arguments.save_statistics)
        paths["statistics"] = arguments.save_statistics
    show_result(console, result, paths)
    console.result(result_json(result, paths))
    return check_trials(console, result.report.trials, arguments.check_snr)


def parse_forms(text: str | None) -> list[OutputForm]:
    """The forms named in a comma-separated list; all of them without one."""
    if text is None:
        return list(OutputForm)
    names = [name.strip().lower() for name in text.split(",") if name.strip()]
    known = {form.value: form for form in OutputForm}
    unknown = [name for name in names if name not in known]
    if unknown or not names:
        raise UsageError(f"--format: '{', '.join(unknown) or text}' is unknown; choose from {', '.join(known)}")
    return [known[name] for name in dict.fromkeys(names)]
