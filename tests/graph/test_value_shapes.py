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
    "an operator that no table knows": "y = custom.Find(x)",
}


@pytest.mark.parametrize("nodes", BY_SHAPES.values(), ids=BY_SHAPES)
def test_shapes_decide(nodes: str) -> None:
    assert "y" not in shaped_by_values(parse(nodes, domains='"custom": 1').graph)


@pytest.mark.parametrize("nodes", BY_VALUES.values(), ids=BY_VALUES)
def test_values_decide(nodes: str) -> None:
    assert "y" in shaped_by_values(parse(nodes, domains='"custom": 1').graph)
