"""Weights in Constant nodes, as exporters may write them: none is left behind once it is replaced."""

from __future__ import annotations

import pytest
from onnx import ModelProto, helper

import amct_onnx
from tests.models import Array, normal, parse


def network() -> ModelProto:
    """Three layers, the last with an Add for its bias; two of the twelve rows of the second are zero."""
    second = normal(12, 8, seed=3)
    second[[2, 5]] = 0
    source = parse(
        """[first] s = Gemm<transB = 1>(x, w, b) t = Relu(s) [second] u = Gemm<transB = 1>(t, v, c) r = Relu(u)
           [last] p = MatMul(r, m) y = Add(p, d)""",
        "float[n,6] x",
        "float[n,4] y",
        {
            "w": normal(8, 6, seed=1),
            "b": normal(8, seed=2) + 1,
            "v": second,
            "c": normal(12, seed=4) + 1,
            "m": normal(12, 4, seed=5),
            "d": normal(4, seed=6),
        },
    )
    nodes = [helper.make_node("Constant", [], [entry.name], value=entry) for entry in source.graph.initializer]
    del source.graph.initializer[:]
    for index, node in enumerate(nodes):
        source.graph.node.insert(index, node)
    return source


def feeds() -> list[dict[str, Array]]:
    return [{"x": normal(64, 6, seed=10 + index)} for index in range(4)]


def unread(model: ModelProto) -> list[str]:
    """Values that nothing reads."""
    read = {name for node in model.graph.node for name in node.input} | {info.name for info in model.graph.output}
    made = [name for node in model.graph.node for name in node.output]
    return [name for name in (*made, *(entry.name for entry in model.graph.initializer)) if name not in read]


@pytest.mark.parametrize("ratio", [0.25, 0.5])
@pytest.mark.parametrize("data", [None, feeds()])
def test_pruning(ratio: float, data: list[dict[str, Array]] | None) -> None:
    result = amct_onnx.prune(network(), data, ratio=ratio)
    assert bool(result.report.fitted) is (data is not None)
    assert unread(result.model.to_proto()) == []


@pytest.mark.parametrize("data", [None, feeds()])
def test_thinning_out(data: list[dict[str, Array]] | None) -> None:
    assert unread(amct_onnx.sparsify(network(), data).model.to_proto()) == []
