"""``amct_onnx inspect``."""

from __future__ import annotations

import argparse

from amct_onnx.api import inspect
from amct_onnx.api.inspection import Shape
from amct_onnx.cli.console import Console


def run(arguments: argparse.Namespace, console: Console) -> int:
    """Show the facts of a model."""
    found = inspect(arguments.model)
    console.result(found.to_dict())
    if console.as_json:
        return 0
    operators = ", ".join(f"{count} {name}" for name, count in found.operators.items())
    console.say(f"opset {found.opset}, {found.nodes} nodes after fusion: {operators}")
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
    console.say(
        f"{quantizable} of {len(found.facts)} candidates can be quantized; free sizes count as 1 in multiply-adds"
    )
    for name, members in found.fusions.items():
        console.say(f"fused: {' + '.join(members)} -> {name}")
    return 0


def _shape(shape: Shape | None) -> str:
    return "?" if shape is None else "x".join("?" if size is None else str(size) for size in shape)
