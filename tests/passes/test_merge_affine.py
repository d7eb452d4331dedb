"""Two affine nodes become one where no layer takes them in."""

from __future__ import annotations

import numpy as np
import pytest

from amct_onnx.passes.base import PassResult
from amct_onnx.passes.merge_affine import MergeAffine
from tests.models import normal, parse, summary
from tests.passes.fusing import after, assert_same_numbers, data, operators, statistics

IMAGE, ANY = "float[2,4,7,7] x", "float[a,b,c,d] y"
WEIGHTS = {"k": normal(4, 1, 1, seed=3), "a": normal(1, 4, 1, 1), "h": np.array([6.0], np.float32)} | statistics(4)
NORM = "[bn] {} = BatchNormalization({}, g, b, m, v)"


@pytest.mark.parametrize("node", ["Mul(k, {})", "Div({}, k)", "Add({}, a)", "Sub(a, {})", "Sub({}, h)"])
@pytest.mark.parametrize("first", [True, False])
def test_arithmetic_beside_a_normalization(node: str, first: bool) -> None:
    pair = [NORM.format("s", "x"), "[op] y = " + node.format("s")]
    if not first:
        pair = ["[op] s = " + node.format("x"), NORM.format("y", "s")]
    model = parse("  ".join(pair), IMAGE, ANY, WEIGHTS)
    proto, result = after(model, MergeAffine())
    assert operators(proto) == ["BatchNormalization"]
    assert result.merged == {"bn": ("bn", "op")}
    assert_same_numbers(model, proto, data(2, 4, 7, 7))


def test_a_long_chain_becomes_one_normalization() -> None:
    nodes = (
        f"{NORM.format('s', 'x')} [mul] t = Mul(s, k) [add] u = Add(t, a) [two] y = BatchNormalization(u, b, g, m, v)"
    )
    model = parse(nodes, IMAGE, ANY, WEIGHTS)
    proto, result = after(model, MergeAffine())
    assert operators(proto) == ["BatchNormalization"]
    assert result.merged == {"bn": ("bn", "mul", "add", "two")}
    assert_same_numbers(model, proto, data(2, 4, 7, 7))


@pytest.mark.parametrize(
    ("nodes", "op"),
    [
        ("[p] s = Div(x, h) [q] y = Mul(k, s)", "p: Mul(x, h) -> y"),
        ("[p] s = Mul(k, x) [q] y = Div(s, h)", "p: Mul(k, x) -> y"),
        ("[p] s = Add(h, x) [q] y = Sub(s, a)", "p: Add(h, x) -> y"),
        ("[p] s = Sub(x, h) [q] y = Sub(s, a)", "p: Add(x, h) -> y"),
    ],
)
def test_factors_and_summands(nodes: str, op: str) -> None:
    model = parse(nodes, IMAGE, ANY, WEIGHTS)
    proto, result = after(model, MergeAffine())
    assert summary(proto.graph.node) == [op]
    assert result.merged == {"p": ("p", "q")}
    assert_same_numbers(model, proto, data(2, 4, 7, 7))


def test_constants_that_other_nodes_read_keep_their_values() -> None:
    model = parse("s = Div(x, h) t = Mul(s, k) r = Mul(x, h) y = Mul(t, r)", IMAGE, ANY, WEIGHTS)
    proto, result = after(model, MergeAffine())
    assert len(result.merged) == 1
    assert_same_numbers(model, proto, data(2, 4, 7, 7))


@pytest.mark.parametrize(
    "nodes",
    [
        "s = Mul(x, k) y = Add(s, a)",
        "s = Sub(h, x) y = Add(s, a)",
        "s = Div(h, x) y = Mul(s, k)",
        "s = Div(x, k) t = Relu(s) y = Mul(t, k)",
        "s = Mul(x, k) t = Mul(s, k) y = Mul(s, t)",
    ],
)
def test_what_is_no_pair_stays(nodes: str) -> None:
    assert after(parse(nodes, IMAGE, ANY, WEIGHTS), MergeAffine())[1] == PassResult()


def test_a_pair_whose_constant_would_grow_stays() -> None:
    weights = {"p": normal(4, 1, 1), "q": normal(1, 7, 1)}
    assert after(parse("s = Mul(x, p) y = Mul(s, q)", IMAGE, ANY, weights), MergeAffine())[1] == PassResult()


@pytest.mark.parametrize("value", [0.0, 1e-30, 1e30, np.nan])
def test_products_that_leave_float32_stay(value: float) -> None:
    weights = {"p": np.array(value, np.float32)}
    for nodes in ("s = Mul(x, p) y = Mul(s, p)", "s = Div(x, p) y = Div(s, p)"):
        result = after(parse(nodes, IMAGE, ANY, weights), MergeAffine())[1]
        assert result == PassResult() or (value == 0 and "Mul" in nodes)


def test_what_leaves_the_graph_stays() -> None:
    model = parse("s = Div(x, h) y = Mul(s, k)", IMAGE, ANY + ", float[e,f,g,i] s", WEIGHTS)
    assert after(model, MergeAffine())[1] == PassResult()


def test_other_element_types_stay() -> None:
    weights = {"h": np.array([6], np.int64)}
    model = parse("s = Div(x, h) y = Mul(s, h)", "int64[3] x", "int64[a] y", weights)
    assert after(model, MergeAffine())[1] == PassResult()


@pytest.mark.parametrize("shape", ["2,4,7,7", "2,4,7"])
def test_channels_of_unknown_rank_stay(shape: str) -> None:
    """[4, 1, 1] are channels of four axes and the batch of three."""
    nodes = f"r = Neg(x) {NORM.format('s', 'r')} y = Mul(s, k)"
    model = parse(nodes, f"float[{shape}] x", ANY, WEIGHTS)
    assert after(model, MergeAffine())[1] == PassResult()
    model = parse(
        nodes.replace("Mul(s, k)", "Mul(s, h)"),
        f"float[{shape}] x",
        f"float[{'abcd'[0]},b,c{',d' * shape.count('7,7')}] y",
        WEIGHTS,
    )
    proto, result = after(model, MergeAffine())
    assert result.changed == ("bn",)
    assert_same_numbers(model, proto, data(*map(int, shape.split(","))))


def test_training_mode_stays() -> None:
    nodes = "s, p, q = BatchNormalization<training_mode = 1>(x, g, b, m, v) y = Mul(s, k)"
    assert after(parse(nodes, IMAGE, ANY, WEIGHTS), MergeAffine())[1] == PassResult()


@pytest.mark.parametrize("skip", ["p", "q"])
def test_each_name_can_be_skipped(skip: str) -> None:
    model = parse("[p] s = Div(x, h) [q] y = Mul(k, s)", IMAGE, ANY, WEIGHTS)
    assert after(model, MergeAffine(skip={skip}))[1] == PassResult(withheld=("p",))
