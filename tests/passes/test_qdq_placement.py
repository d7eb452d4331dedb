"""Which tensors carry a pair, besides the data inputs of the layers."""

from __future__ import annotations

import math

import numpy as np
import pytest

from amct_onnx.passes.locate import locate_layers
from amct_onnx.passes.qdq_placement import keeps_scale, output_bounds, place_pairs, scale_source
from tests.models import Array, imported, normal, parse

IMAGE, ANY = "float[1,4,8,8] x", "float[p,q,r,s] y"
CONVS = {name: normal(4, 4, 1, 1) for name in "ABD"} | {"wide": normal(4, 8, 1, 1)}
SQUARES = {name: normal(4, 4) for name in "abcd"}


def pairs(nodes: str, inputs: str = IMAGE, weights: dict[str, Array] = CONVS, **more: bool) -> tuple[str, ...]:
    model = imported(parse(nodes, inputs, ANY, weights))
    return place_pairs(model, locate_layers(model).layers, **more).tensors


CASES = {
    "a convolution that leaves the graph": ("y = Conv(x, A)", ["y"]),
    "a convolution before a convolution": ("s = Conv(x, A)  y = Conv(s, B)", ["y"]),
    "a merged Relu": ("s = Conv(x, A)  r = Relu(s)  y = Conv(r, B)", ["y"]),
    "a residual sum": (
        "r = Conv(x, A)  c = Conv(r, B)  s = Add(c, r)  t = Relu(s)  y = Conv(t, D)",
        ["c", "y"],
    ),
    "a residual sum at the end runs in float": ("r = Conv(x, A)  c = Conv(r, B)  s = Add(c, r)  y = Relu(s)", ["c"]),
    "a sum that a Relu and others read": (
        "c = Conv(x, A)  d1 = Conv(x, B)  s = Add(c, d1)  r = Relu(s)  n = Neg(s)  z = Conv(r, D)  y = Add(z, n)",
        ["c", "d1", "s", "z"],
    ),
    "squeeze and excitation": (
        "c = Conv(x, A)  g = GlobalAveragePool(c)  e = Conv(g, B)  h = Sigmoid(e)  m = Mul(c, h)  y = Conv(m, D)",
        ["c", "e", "h", "y"],
    ),
    "a swish": ("c = Conv(x, A)  h = Sigmoid(c)  m = Mul(c, h)  y = Conv(m, B)", ["c", "h", "y"]),
    "a function between convolutions": ("c = Conv(x, A)  h = HardSwish(c)  y = Conv(h, B)", ["c", "y"]),
    "a function behind a sum": (
        "c = Conv(x, A)  e = Conv(x, B)  s = Add(c, e)  h = HardSwish(s)  y = Conv(h, D)",
        ["c", "e", "s", "y"],
    ),
    "a concatenation": (
        "c = Conv(x, A)  e = Conv(x, B)  k = Concat<axis = 1>(c, e)  y = Conv(k, wide)",
        ["c", "e", "y"],
    ),
    "a concatenation at the end": ("c = Conv(x, A)  e = Conv(x, B)  y = Concat<axis = 1>(c, e)", ["c", "e"]),
    "a pooling of what is not negative": (
        "c = Conv(x, A)  r = Relu(c)  m = MaxPool<kernel_shape = [2,2]>(r)  y = Conv(m, B)",
        ["r", "y"],
    ),
    "a pooling of anything": ("c = Conv(x, A)  m = MaxPool<kernel_shape = [2,2]>(c)  y = Conv(m, B)", ["c", "y"]),
    "a global pooling": ("c = Conv(x, A)  r = Relu(c)  g = GlobalAveragePool(r)  y = Conv(g, B)", ["r", "y"]),
    "a float operator between": ("c = Conv(x, A)  e = Exp(c)  y = Conv(e, B)", ["c", "y"]),
    "an operator of another domain": ("c = Conv(x, A)  e = custom.Relu(c)  y = Conv(e, B)", ["c", "y"]),
}


@pytest.mark.parametrize("case", CASES)
def test_images(case: str) -> None:
    nodes, expected = CASES[case]
    assert list(pairs(nodes)) == expected


ATTENTION = """
    q = MatMul(x, a)  k = MatMul(x, b)  v = MatMul(x, c)  t = Transpose<perm = [0,2,1]>(k)
    s = MatMul(q, t)  p = Softmax(s)  o = MatMul(p, v)  y = MatMul(o, d)
"""


def test_attention() -> None:
    assert pairs(ATTENTION, "float[2,3,4] x", SQUARES) == ("q", "k", "v", "t", "p")
    assert pairs(ATTENTION, "float[2,3,4] x", SQUARES, products=False) == ()


def test_a_normalization_between_products() -> None:
    weights = SQUARES | {"g": normal(4), "h": normal(4)}
    assert pairs("m = MatMul(x, a)  n = LayerNormalization(m, g, h)  y = MatMul(n, b)", "float[2,4] x", weights) == ()


def test_a_perceptron() -> None:
    weights = SQUARES | {"k": normal(4)}
    assert pairs("m = MatMul(x, a)  u = Add(m, k)  h = Gelu(u)  y = MatMul(h, b)", "float[2,4] x", weights) == ()


def test_an_operand_that_cannot_be_carried_keeps_the_node_in_float() -> None:
    nodes = "c = Conv(x, A)  s = Add(c, u)  y = Conv(s, B)"
    assert pairs(nodes, IMAGE + ", float[1,4,8,8] u") == ("c", "y")


def test_constant_operands_are_stored_as_integers() -> None:
    weights = CONVS | {"k": normal(4, 1, 1)}
    model = imported(parse("c = Conv(x, A)  m = Mul(c, k)  y = Conv(m, B)", IMAGE, ANY, weights))
    placement = place_pairs(model, locate_layers(model).layers)
    assert (placement.tensors, placement.constants) == (("c", "y"), ("k",))


def test_a_clip_with_computed_bounds_is_not_merged() -> None:
    nodes = "c = Conv(x, A)  r = Clip(c, low, high)  y = Conv(r, B)"
    assert pairs(nodes, IMAGE + ", float low, float high") == ("c", "y")
    bounds = CONVS | {"low": np.asarray(np.float32(0)), "high": np.asarray(np.float32(6))}
    assert pairs(nodes, weights=bounds) == ("y",)


def test_a_relu_inside_a_body_is_not_merged() -> None:
    text = """
        c = Conv(x, A)
        y = If(b) <then_branch = p () => (float[p,q,r,s] t) { t = Relu(c) },
                  else_branch = q () => (float[p,q,r,s] u) { u = Neg(x) }>
    """
    assert pairs(text, IMAGE + ", bool b") == ("c",)


def test_no_layer_no_pair() -> None:
    assert pairs("s = Add(x, x)  y = Mul(s, x)") == ()


BOUNDS = [
    ("y = Relu(x)", 0, math.inf),
    ("y = Sigmoid(x)", 0, 1),
    ("y = Tanh(x)", -1, 1),
    ("y = Softmax(x)", 0, 1),
    ("y = Clip(x, low, high)", -2, 6),
    ("y = Clip(x, , high)", -math.inf, 6),
    ("y = Clip(x, low)", -2, math.inf),
    ("k = Identity(low)  y = Clip(x, k)", -2, math.inf),
    ("k = Abs(low)  y = Clip(x, k, high)", -math.inf, 6),
    ("r = Relu(x)  y = Reshape(r, shape)", 0, math.inf),
    ("r = Relu(x)  s = Reshape(r, shape)  y = Neg(s)", -math.inf, math.inf),
    ("y = Identity(x)", -math.inf, math.inf),
]


@pytest.mark.parametrize(("nodes", "low", "high"), BOUNDS)
def test_what_a_producer_can_emit(nodes: str, low: float, high: float) -> None:
    weights = {"low": np.float32(-2), "high": np.float32(6), "shape": np.array([-1], np.int64)}
    model = imported(parse(nodes, "float[2,3] x", "float y", {k: np.asarray(v) for k, v in weights.items()}))
    assert output_bounds(model.graph.nodes[-1].outputs[0]) == (low, high)


def test_attributes_of_an_older_clip() -> None:
    model = imported(parse("y = Clip<min = -1.0, max = 1.0>(x)", opset=9))
    assert output_bounds(model.graph.nodes[0].outputs[0]) == (-1, 1)


def test_scales_are_shared_through_what_only_moves_values() -> None:
    nodes = "r = Relu(x)  f = Flatten(r)  m = Identity(f)  n = Neg(m)  y = Flatten(n)"
    model = imported(parse(nodes, IMAGE, "float[p,q] y"))
    tensors = {node.outputs[0].name: node.outputs[0] for node in model.graph.nodes}
    assert {name: scale_source(tensor).name for name, tensor in tensors.items()} == {
        "r": "r",
        "f": "r",
        "m": "r",
        "n": "n",
        "y": "n",
    }


def test_a_max_pool_keeps_the_scale_of_what_is_not_negative() -> None:
    pool = "MaxPool<kernel_shape = [2,2]>"
    model = imported(parse(f"m = {pool}(x)  r = Relu(m)  y = {pool}(r)", IMAGE, ANY))
    assert [keeps_scale(node) for node in model.graph.nodes] == [False, False, True]
