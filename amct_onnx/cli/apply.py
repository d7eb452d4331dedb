"""``amct_onnx apply``."""

from __future__ import annotations

import argparse

from amct_onnx.api import apply
from amct_onnx.api.compress import sibling_tensors
from amct_onnx.api.saving import check_outputs, output_paths
from amct_onnx.cli import prune
from amct_onnx.cli.console import Console
from amct_onnx.cli.quantize import parse_forms
from amct_onnx.cli.report import result_json, show_result
from amct_onnx.record import load_record


def run(arguments: argparse.Namespace, console: Console) -> int:
    """Rewrite by a plan, save, report."""
    if load_record(arguments.record).record.prunes_only:
        return prune.run_restore(arguments, console)
    forms = parse_forms(arguments.format)
    plan = [arguments.record, arguments.tensors or sibling_tensors(arguments.record)]
    keep = [path for path in plan if path is not None and path.exists()]
    paths = output_paths(arguments.output, forms)
    models = {kind: path for kind, path in paths.items() if kind not in ("record", "tensors")}
    check_outputs(models, [arguments.model, *keep])
    result = apply(
        arguments.model,
        arguments.record,
        tensors=arguments.tensors,
        formats=forms,
        qdq_target=arguments.qdq_target,
        qdq_recurrent=arguments.qdq_recurrent,
        strict=arguments.strict,
    )
    paths = result.save(arguments.output, keep=keep)
    show_result(console, result, paths)
    console.result(result_json(result, paths))
    return 0
