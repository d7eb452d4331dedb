"""``amct_onnx inspect``."""

from __future__ import annotations

import argparse

from amct_onnx.analyse.input_shapes import parse_input_shape
from amct_onnx.api import inspect
from amct_onnx.api.inspection import Shape
from amct_onnx.cli import prune
from amct_onnx.cli.console import Console


def run(arguments: argparse.Namespace, console: Console) -> int:
    """Show the facts of a model."""
    if arguments.prune:
        return prune.run_inspect(arguments, console)
    shapes = parse_input_shape(arguments.input_shape) if arguments.input_shape is not None else None
    found = inspect(arguments.model, input_shapes=shapes)
    console.result(found.to_dict())
    if console.as_json:
        return 0
    operators = ", ".join(f"{count} {name}" for name, count in found.operators.items())
    console.say(f"opset {found.opset}, {found.nodes} nodes after fusion: {operators}")
    for kind, ports in (("input", found.inputs), ("output", found.outputs)):
        for port in ports:
            console.say(f"{kind} {port.name}: {port.dtype or '?'} [{_shape(port.shape, long=True)}]")
    rows = [
        (
            fact.name,
            fact.op_type,
            _shape(fact.input_shape),
            _shape(fact.output_shape),
            f"{fact.parameters:,}",
            "?" if fact.multiply_adds is None else f"{fact.multiply_adds:,}",
            "yes" if fact.quantizable else f"no: {fact.reason}",
        )
        for fact in found.facts
    ]
    console.table(("node", "type", "input", "output", "parameters", "multiply-adds", "quantizable"), rows)
    quantizable = sum(fact.quantizable for fact in found.facts)
    is_free = any(not isinstance(size, int) for port in found.inputs for size in port.shape or ())
    counted = "; multiply-adds count free sizes as 1: fix them with --input-shape" if is_free else ""
    console.say(f"{quantizable} of {len(found.facts)} candidates can be quantized{counted}")
    for name, members in found.fusions.items():
        console.say(f"fused: {' + '.join(members)} -> {name}")
    return 0


def _shape(shape: Shape | None, *, long: bool = False) -> str:
    """Sizes with x between; free ones by name when `long`, else as a question mark."""
    if shape is None:
        return "?"
    return "x".join(str(size) if isinstance(size, int) or (long and size is not None) else "?" for size in shape)
