"""Which tensors have a shape that values decide, on the smallest graphs of each kind."""

from __future__ import annotations

import pytest

from amct_onnx.graph.value_shapes import shaped_by_values
from tests.models import parse

BY_SHAPES = {
    "a target of Reshape made from Shape": "s = Shape(x) y = Reshape(x, s)",
    "as many steps as there are rows": (
        "s = Shape(x) zero = Constant<value_int=0>() one = Constant<value_int=1>() n = Gather(s, zero) "
        "y = Range(zero, n, one)"
    ),
    "positions of ones that are always there": "s = Shape(x) one = ConstantOfShape(s) y = NonZero(one)",
    "a branch that a shape chooses": (
        "s = Size(x) c = Cast<to=9>(s) y = If(c) <then_branch = t () => (p) { p = Relu(x) }, "
        "else_branch = e () => (q) { q = Neg(x) }>"
    ),
    "a loop that runs as often as it is told": (
        "m = Constant<value_int=3>() e, y = Loop(m, , x) <body = b (int64 i, bool go, float[2,3] a) => "
        "(bool on, float[2,3] c, float[2,3] each) { on = Identity(go) c = Neg(a) each = Mul(a, x) }>"
    ),
    "a Scan over rows": ("y = Scan<num_scan_inputs=1, body = b (float[3] a) => (float[3] c) { c = Neg(a) }>(x)"),
    "an input left out behind a result left out": (
        "a, , = LSTM<hidden_size=2>(x, x, x) g = Constant<value_floats=[1.0, 1.0]>() y = Resize(x, , g)"
    ),
}
BY_VALUES = {
    "found entries": "y = NonZero(x)",
    "what is made of them": "n = NonZero(x) y = Cast<to=1>(n)",
    "a shape of them": "n = NonZero(x) s = Shape(n) y = ConstantOfShape(s)",
    "a computed number": "m = ReduceMax<keepdims=0>(x) n = Cast<to=7>(m) s = Reshape(n, s1) y = ConstantOfShape(s)",
    "a branch that a value chooses": (
        "m = ReduceMax<keepdims=0>(x) c = Cast<to=9>(m) y = If(c) <then_branch = t () => (p) { p = Relu(x) }, "
        "else_branch = e () => (q) { q = Neg(x) }>"
    ),
    "inside a body": (
        "c = Constant<value_int=1>() b = Cast<to=9>(c) y = If(b) <then_branch = t () => (p) { p = NonZero(x) }, "
        "else_branch = e () => (q) { q = NonZero(x) }>"
    ),
    "as many runs as a value in the body lets pass": (
        "m = Constant<value_int=9>() t = Constant<value_float=0.5>() e, y = Loop(m, , t) <body = b "
        "(int64 i, bool go, float a) => (bool on, float c, float each) "
        "{ c = Neg(a) each = Neg(a) k = ReduceMax<keepdims=0>(x) on = Less(k, a) }>"
    ),
    "the shape of what the run before found": (
        "m = Constant<value_int=9>() t = Constant<value_ints=[1]>() e, f = Loop(m, , t) <body = b "
        "(int64 i, bool go, int64[k] a) => (bool on, int64[l] c, int64[1] each) "
        "{ on = Identity(go) n = NonZero(x) c = Reshape(n, s1) each = Shape(a) }> y = ConstantOfShape(f)"
    ),
    "as many runs as a value says": (
        "m = ReduceMax<keepdims=0>(x) n = Cast<to=7>(m) t = Constant<value_float=0.5>() e, y = Loop(n, , t) <body = b "
        "(int64 i, bool go, float a) => (bool on, float c, float each) "
        "{ on = Identity(go) c = Neg(a) each = Neg(a) }>"
    ),
    "what a Scan carries of them": (
        "n = NonZero(x) e, y = Scan<num_scan_inputs=1, body = b (int64[2,k] a, float[3] r) => "
        "(int64[2,k] c, int64[2,k] d) { c = Neg(a) d = Neg(a) }>(n, x)"
    ),
    "a window as long as a value says": "m = ReduceMax<keepdims=0>(x) n = Cast<to=7>(m) y = HannWindow(n)",
    "what is found in random values": "r = RandomNormal<shape = [4]>() y = NonZero(r)",
    "words that are left out": 'y = StringNormalizer<stopwords = ["a"]>(x)',
    "an operator that no table knows": "y = custom.Find(x)",
}


@pytest.mark.parametrize("nodes", BY_SHAPES.values(), ids=BY_SHAPES)
def test_shapes_decide(nodes: str) -> None:
    assert "y" not in shaped_by_values(parse(nodes, domains='"custom": 1').graph)


@pytest.mark.parametrize("nodes", BY_VALUES.values(), ids=BY_VALUES)
def test_values_decide(nodes: str) -> None:
    assert "y" in shaped_by_values(parse(nodes, domains='"custom": 1').graph)
