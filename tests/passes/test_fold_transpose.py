"""Transposed constants and transpositions in a row: the very same values."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import ModelProto

from amct_onnx.passes.base import PassResult
from amct_onnx.passes.fold_transpose import FoldTranspose
from amct_onnx.passes.locate import locate_layers
from tests.models import imported, normal, parse, run, summary
from tests.passes.fusing import after, data, operators

CUBE, ANY = "float[2,3,4] x", "float[a,b,c] y"


def folded(
    nodes: str, outputs: str = ANY, skip: str = "", **weights: object
) -> tuple[ModelProto, ModelProto, PassResult]:
    model = parse(nodes, CUBE, outputs, weights)
    proto, result = after(model, FoldTranspose(skip={skip}))
    for expected, got in zip(run(model, data(2, 3, 4)), run(proto, data(2, 3, 4)), strict=True):
        np.testing.assert_array_equal(got, expected)
    return model, proto, result


@pytest.mark.parametrize(
    "nodes", ["[m] y = MatMul(x, t)", "z = Reshape(x, r) [m] u = Gemm<transB = 1>(z, w) y = MatMul(x, t)"]
)
def test_a_transposed_weight_is_a_weight(nodes: str) -> None:
    weights = {"w": normal(5, 4), "r": np.array([6, 4], np.int64)}
    model, proto, result = folded(f"[t] t = Transpose<perm = [1, 0]>(w) {nodes}", **weights)
    assert "Transpose" not in operators(proto)
    assert result.changed == ("t",)
    assert {"t"} < set(result.merged[next(iter(result.merged))])
    names = {layer.op_type for layer in locate_layers(imported(proto)).layers}
    assert "MatMul" in names
    assert len(locate_layers(imported(model)).layers) < len(locate_layers(imported(proto)).layers)


def test_without_a_permutation_the_axes_are_reversed() -> None:
    _, proto, _ = folded("t = Transpose(w) y = Add(x, t)", w=normal(4, 3, 2))
    assert operators(proto) == ["Add"]


def test_integers_and_several_readers() -> None:
    nodes = (
        "t = Transpose<perm = [1, 0]>(w) f = Cast<to = 1>(t) z = Neg(t) h = Cast<to = 1>(z) u = Add(f, h) y = Add(x, u)"
    )
    _, proto, _ = folded(nodes, w=np.arange(12).reshape(4, 3))
    assert "Transpose" not in operators(proto)


def test_a_transposed_constant_that_leaves_the_graph_stays() -> None:
    _, _, result = folded("t = Transpose<perm = [1, 0]>(w) y = MatMul(x, t)", ANY + ", float[e,f] t", w=normal(5, 4))
    assert result == PassResult()


@pytest.mark.parametrize(
    ("first", "second"), [("<perm = [1, 2, 0]>", "<perm = [2, 0, 1]>"), ("", ""), ("", "<perm = [2, 1, 0]>")]
)
def test_two_that_cancel_go(first: str, second: str) -> None:
    _, proto, _ = folded(f"s = Transpose{first}(x) t = Transpose{second}(s) y = Relu(t)")
    assert summary(proto.graph.node) == ["Relu_2: Relu(x) -> y"]


def test_two_that_cancel_with_another_reader_between() -> None:
    _, proto, _ = folded(
        "s = Transpose(x) t = Transpose(s) u = Transpose(s) z = Relu(s) q = Transpose(z) v = Add(t, q) y = Add(v, u)"
    )
    assert operators(proto) == ["Transpose", "Relu", "Transpose", "Add", "Add"]


@pytest.mark.parametrize(
    ("first", "second"), [("<perm = [1, 2, 0]>", "<perm = [0, 2, 1]>"), ("", "<perm = [1, 0, 2]>")]
)
def test_two_become_one(first: str, second: str) -> None:
    _, proto, result = folded(f"[p] s = Transpose{first}(x) [q] y = Transpose{second}(s)")
    assert operators(proto) == ["Transpose"]
    assert result.merged == {"q": ("q", "p")}


def test_a_chain_folds_completely() -> None:
    turn = "<perm = [1, 2, 0]>"
    _, proto, _ = folded(f"s = Transpose{turn}(x) t = Transpose{turn}(s) u = Transpose{turn}(t) y = Relu(u)")
    assert operators(proto) == ["Relu"]


@pytest.mark.parametrize("outputs", [ANY, ANY + ", float[d,e,f] s"])
def test_a_graph_output_keeps_its_transpose(outputs: str) -> None:
    _, proto, result = folded("s = Transpose(x) y = Transpose(s)", outputs)
    assert result == PassResult()
    assert operators(proto) == ["Transpose", "Transpose"]


@pytest.mark.parametrize("skip", ["p", "q", "m"])
def test_each_name_can_be_skipped(skip: str) -> None:
    pair = folded("[p] s = Transpose(x) [q] t = Transpose(s) y = Relu(t)", skip=skip)[2]
    assert pair.withheld == (() if skip == "m" else ("q",))
    constant = folded("[p] t = Transpose(w) [m] y = MatMul(x, t)", skip=skip, w=normal(5, 4))[2]
    assert constant.withheld == (() if skip == "q" else ("p",))
