"""Sizes of transposed convolutions that onnx's inference tells wrongly are seen in a run instead."""

from __future__ import annotations

import pytest
from onnx import ModelProto, TensorProto

import amct_onnx
from amct_onnx.analyse.shapes import find_shapes
from amct_onnx.graph.shapes import infer_types
from tests.models import normal, parse, run

ODD = {
    "fewer places than the input has": ("output_shape = [3]", (5,)),
    "fewer places along the second axis": ("output_shape = [4, 3]", (4, 5)),
    "padding beside auto_pad": ('auto_pad = "SAME_LOWER", strides = [3], output_padding = [2]', (5,)),
}


def network(name: str) -> ModelProto:
    """Two transposed convolutions; the runtime makes the sizes of the first known only when it runs."""
    attributes, sides = ODD[name]
    weights = {"w": normal(4, 8, *[3] * len(sides)), "k": normal(8, 6, *[1] * len(sides), seed=1)}
    free = ",".join("abc"[: len(sides)])
    nodes = f"[up] t = ConvTranspose<{attributes}>(x, w) r = Relu(t) y = ConvTranspose(r, k)"
    return parse(nodes, f"float[n,4,{free}] x", f"float[n,6,{','.join('def'[: len(sides)])}] y", weights)


@pytest.mark.parametrize("name", ODD)
def test_sizes_are_those_of_a_run(name: str) -> None:
    model = network(name)
    feed = {"x": normal(2, 4, *ODD[name][1])}
    made = run(model, feed)[0].shape
    shapes = find_shapes(model, None, feed).shapes
    assert shapes["y"] == made
    assert shapes["r"] == shapes["t"] == (2, 8, *made[2:])
    assert infer_types(model)["r"] == TensorProto.FLOAT


@pytest.mark.parametrize("name", ODD)
def test_channels_are_followed_through_them(name: str) -> None:
    model = network(name)
    (group, *_) = amct_onnx.prune(model, [normal(2, 4, *ODD[name][1])], ratio=0.5).report.groups
    assert (group.layers, group.removed) == (("up",), 4)
