"""``amct_onnx apply``."""

from __future__ import annotations

import argparse

from amct_onnx.api import apply
from amct_onnx.cli.console import Console
from amct_onnx.cli.quantize import parse_forms
from amct_onnx.cli.report import result_json, show_result


def run(arguments: argparse.Namespace, console: Console) -> int:
    """Rewrite by a plan, save, report."""
    result = apply(
        arguments.model,
        arguments.record,
        tensors=arguments.tensors,
        formats=parse_forms(arguments.format),
        qdq_target=arguments.qdq_target,
        strict=arguments.strict,
    )
    inputs = [arguments.record, *([arguments.tensors] if arguments.tensors else [])]
    paths = result.save(arguments.output, protect=inputs)
    show_result(console, result, paths)
    console.result(result_json(result, paths))
    return 0
