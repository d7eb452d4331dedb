"""What the Ascend compiler asks of a deploy model as a whole: operator set, fixed sizes, known operators."""

from __future__ import annotations

from collections.abc import Iterator

import onnx

from amct_onnx.graph.model import Graph, Model
from amct_onnx.graph.op_table import is_standard
from amct_onnx.graph.parts import Node, Tensor
from amct_onnx.passes.deploy_findings import DeployFinding

ASCEND_OPERATORS = frozenset(
    {
        "AscendQuant",
        "AscendDequant",
        "AscendAntiQuant",
        "BasicLSTMInplaceFillWindowCache",
        "BasicGRUInplaceFillWindowCache",
    }
)
OLDEST_OPSET, NEWEST_OPSET = 8, 22
"""The compiler knows these operators in the default domain, for these operator sets."""


def opset_findings(model: Model) -> Iterator[DeployFinding]:
    """The operator set must be one that the compiler reads."""
    if not OLDEST_OPSET <= model.opset <= NEWEST_OPSET:
        found = f"uses operator set {model.opset}" if model.opset else "does not import ONNX's own operator set"
        yield DeployFinding(
            "opset",
            "",
            f"the model {found}; the compiler takes {OLDEST_OPSET} to {NEWEST_OPSET}",
            "export the float model with one of these, and quantize it again",
        )


def shape_findings(model: Model) -> Iterator[DeployFinding]:
    """Sizes that are free must be fixed when compiling, since dynamic shapes and int8 exclude each other."""
    fed = [tensor for tensor in model.graph.inputs if tensor.name not in model.graph.initializers]
    free = [tensor for tensor in fed if not _is_fixed(tensor)]
    if free:
        argument = ";".join(f"{tensor.name}:{_sizes(tensor)}" for tensor in free)
        is_open = any(not size.isdecimal() for tensor in free for size in _sizes(tensor).split(","))
        numbers = " (a number for each name or question mark)" if is_open else ""
        yield DeployFinding(
            "dynamic_shape",
            ", ".join(tensor.name for tensor in free),
            "the shape is not fixed, and the compiler's dynamic-shape options cannot be used with int8",
            f'compile with --input_shape="{argument}"{numbers}',
            stops=False,
        )


def _is_fixed(tensor: Tensor) -> bool:
    return tensor.shape is not None and all(isinstance(size, int) and size > 0 for size in tensor.shape)


def _sizes(tensor: Tensor) -> str:
    """Sizes as the compiler's argument takes them; one sample at a time where the batch is free."""
    if tensor.shape is None:
        return "?"
    sizes = [size if not isinstance(size, int) or size > 0 else None for size in tensor.shape]
    if len(sizes) > 1 and not isinstance(sizes[0], int):
        sizes[0] = 1
    return ",".join("?" if size is None else str(size) for size in sizes)


def operator_findings(model: Model) -> Iterator[DeployFinding]:
    """Every operator must be ONNX's own, or one of those that quantize."""
    for graph in model.graphs():
        for node in graph.nodes:
            if not is_standard(node):
                yield DeployFinding(
                    "operator",
                    node.name,
                    f"{node.op} is an operator of domain '{node.domain}'; the compiler knows ai.onnx only",
                    "export the model without it, or register a plugin for it with the compiler",
                )
            elif node.op not in ASCEND_OPERATORS and not onnx.defs.has(node.op, ""):
                yield DeployFinding(
                    "operator",
                    node.name,
                    f"{node.op} is no ONNX operator",
                    "export the model without it, or register a plugin for it with the compiler",
                )


def control_flow_findings(model: Model) -> Iterator[DeployFinding]:
    """Bodies of control flow are compiled in part, and stay float."""
    for graph in model.graphs():
        for node in graph.nodes:
            if _has_body(node):
                yield DeployFinding(
                    "control_flow",
                    node.name,
                    f"{node.op} is control flow, which compilers take in part only",
                    "export the model with its branches and loops resolved where the compiler refuses it",
                    stops=False,
                )


def _has_body(node: Node) -> bool:
    return any(isinstance(value, Graph) for value in node.attrs.values())
