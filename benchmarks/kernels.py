"""Which of the heavy operators really run in integers, read off the graph onnxruntime runs."""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import onnx
import onnxruntime

INTEGER_KERNELS = frozenset(
    {
        "ConvInteger",
        "DynamicQuantizeMatMul",
        "MatMulInteger",
        "MatMulIntegerToFloat",
        "QGemm",
        "QLinearConv",
        "QLinearMatMul",
    }
)
FLOAT_KERNELS = frozenset(
    {"Conv", "FusedConv", "FusedGemm", "FusedMatMul", "FusedMatMulActivation", "Gemm", "MatMul", "NhwcFusedConv"}
)


@dataclass(frozen=True)
class Kernels:
    """Convolutions and matrix products of the optimised graph by kind."""

    integer: int
    floating: int
    by_operator: dict[str, int]

    def __str__(self) -> str:
        """Give ``integer / all``."""
        return f"{self.integer}/{self.integer + self.floating}"


def count(model_path: Path) -> Kernels:
    """Optimise the model as a plain session does and count its convolutions and matrix products, in any domain."""
    with tempfile.TemporaryDirectory() as folder:
        options = onnxruntime.SessionOptions()
        options.optimized_model_filepath = str(Path(folder) / "optimised.onnx")
        # Saving the optimised graph warns that it fits this machine only, which is just what is asked.
        options.log_severity_level = 3
        onnxruntime.InferenceSession(model_path, options, providers=["CPUExecutionProvider"])
        model = onnx.load(options.optimized_model_filepath, load_external_data=False)
    seen = Counter(node.op_type for node in _nodes(model.graph))
    heavy = {kind: seen[kind] for kind in sorted(INTEGER_KERNELS | FLOAT_KERNELS) if seen[kind]}
    integer = sum(number for kind, number in heavy.items() if kind in INTEGER_KERNELS)
    return Kernels(integer, sum(heavy.values()) - integer, heavy)


def _nodes(graph: onnx.GraphProto) -> Iterator[onnx.NodeProto]:
    """Walk the nodes of a graph and of the graphs inside its nodes."""
    for node in graph.node:
        yield node
        for attribute in node.attribute:
            for inner in [attribute.g, *attribute.graphs]:
                yield from _nodes(inner)
