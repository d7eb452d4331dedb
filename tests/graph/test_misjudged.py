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
    """A transposed convolution and a product over its channels; sides are free, so that the runtime sees them alone.

    No convolution reads it: that ends the process in the inference of onnx 1.16.
    """
    attributes, sides = ODD[name]
    weights = {"w": normal(4, 8, *[3] * len(sides)), "k": normal(8, 6, seed=1)}
    order, free = ("0,2,1", "a") if len(sides) == 1 else ("0,2,3,1", "a,b")
    nodes = f"[up] t = ConvTranspose<{attributes}>(x, w) r = Transpose<perm = [{order}]>(t) y = MatMul(r, k)"
    return parse(nodes, f"float[n,4,{free}] x", f"float[m,{free.replace('a', 'c').replace('b', 'd')},6] y", weights)


@pytest.mark.parametrize("name", ODD)
def test_sizes_are_those_of_a_run(name: str) -> None:
    model = network(name)
    feed = {"x": normal(2, 4, *ODD[name][1])}
    made = run(model, feed)[0].shape
    shapes = find_shapes(model, None, feed).shapes
    assert shapes["y"] == made
    assert shapes["t"] == (2, 8, *made[1:-1])
    assert infer_types(model)["r"] == TensorProto.FLOAT


@pytest.mark.parametrize("name", ODD)
def test_channels_are_followed_through_them(name: str) -> None:
    model = network(name)
    (group, *_) = amct_onnx.prune(model, [normal(2, 4, *ODD[name][1])], ratio=0.5).report.groups
    assert (group.layers, group.removed) == (("up",), 4)
