"""``amct_onnx apply``."""

from __future__ import annotations

import argparse

from amct_onnx.api import apply
from amct_onnx.api.compress import sibling_tensors
from amct_onnx.api.saving import check_outputs, modified_path, output_paths
from amct_onnx.cli import prune, sparsify
from amct_onnx.cli.console import Console
from amct_onnx.cli.flags import refuse_flags
from amct_onnx.cli.quantize import parse_forms
from amct_onnx.cli.report import result_json, show_result
from amct_onnx.passes.insert_qdq import QdqTarget
from amct_onnx.record import load_record

_OF_QUANTIZING = ("format", "qdq_target", "qdq_recurrent", "tensors")
_OF_PRUNING = ("structure_only", "input_shape")


def run(arguments: argparse.Namespace, console: Console) -> int:
    """Rewrite by a plan, save, report."""
    loaded = load_record(arguments.record, strict=arguments.strict)
    if loaded.record.prunes_only or (loaded.record.prune and arguments.structure_only):
        refuse_flags(arguments, _OF_QUANTIZING, f"concerns quantizing, and {arguments.record} does not quantize")
        restore = prune.run_restore if loaded.record.takes_channels else sparsify.run_restore
        return restore(arguments, console, loaded)
    refuse_flags(arguments, _OF_PRUNING, f"concerns pruning, and {arguments.record} quantizes")
    forms = parse_forms(arguments.format)
    plan = [arguments.record, arguments.tensors or sibling_tensors(arguments.record)]
    keep = [path for path in plan if path is not None and path.exists()]
    paths = output_paths(arguments.output, forms)
    if loaded.record.prune:
        paths["modified"] = modified_path(arguments.output)
    models = {kind: path for kind, path in paths.items() if kind not in ("record", "tensors")}
    check_outputs(models, [arguments.model, *keep])
    result = apply(
        arguments.model,
        arguments.record,
        tensors=arguments.tensors,
        formats=forms,
        qdq_target=arguments.qdq_target or QdqTarget.ONNXRUNTIME,
        qdq_recurrent=bool(arguments.qdq_recurrent),
        strict=arguments.strict,
    )
    paths = result.save(arguments.output, keep=keep)
    if result.modified is not None:
        console.say(f"what the record takes out went first, and the rest was quantized: {paths['modified']}")
    show_result(console, result, paths)
    console.result(result_json(result, paths))
    return 0
