"""Shapes inside of bodies: constants from outside are seen, and names that mean two tensors are not told."""

from __future__ import annotations

import numpy as np
import pytest

from amct_onnx.graph.shapes import infer_infos
from tests.models import parse

SIZES = {"to": np.array([3, 2], np.int64)}
BODIES = {
    "of the main graph": ("", "y = Reshape(x, to)", SIZES),
    "made by a node": ("to = Constant<value = int64[2] {3, 2}>()", "y = Reshape(x, to)", {}),
    "two bodies further out": (
        "",
        "y = If(c) <then_branch = t () => (p) { p = Reshape(x, to) }, "
        "else_branch = e () => (q) { q = Reshape(x, to) }>",
        SIZES,
    ),
    "hidden by one of the body": (
        "",
        "to = Constant<value = int64[2] {3, 2}>() y = Reshape(x, to)",
        {"to": np.array([6, 1], np.int64)},
    ),
}


@pytest.mark.parametrize("name", BODIES)
def test_a_body_reads_a_shape(name: str) -> None:
    before, nodes, weights = BODIES[name]
    text = f"{before} z = If(c) <then_branch = a () => (y) {{ {nodes} }}, else_branch = b () => (w) {{ w = Neg(x) }}>"
    source = parse(text, "float[2,3] x, bool c", "float[a,b] z", weights)
    shape = infer_infos(source, bodies=True)["y"].type.tensor_type.shape
    assert [dim.dim_value for dim in shape.dim] == [3, 2]
    assert not any(attribute.g.initializer for node in source.graph.node for attribute in node.attribute)


@pytest.mark.parametrize("other", ["h = custom.Find(x)", "g = NonZero(x) h = Neg(g)"], ids=["unknown", "different"])
def test_a_name_that_another_body_has_too_is_not_told(other: str) -> None:
    text = (
        f"z = If(c) <then_branch = a () => (y) {{ h = Neg(x) y = Relu(h) }}, else_branch = b () => (w) {{ {other} "
        "w = Neg(x) }>"
    )
    source = parse(text, "float[2,3] x, bool c", "float[a,b] z", domains='"custom": 1')
    infos = infer_infos(source, bodies=True)
    assert "y" in infos
    assert "h" not in infos
