"""Multiply-adds of one sample, against those that are counted by hand."""

from __future__ import annotations

import math

import pytest

from amct_onnx.analyse.cost import layer_multiply_adds
from tests.models import imported, node_named, normal, parse, run

PRODUCTS = {
    "rows of a sample": ("MatMul(x, w)", (4, 6), (2, 3, 4), 3 * 4 * 6),
    "one row": ("MatMul(x, w)", (4, 6), (2, 4), 4 * 6),
    "a vector": ("MatMul(x, w)", (4, 6), (4,), 4 * 6),
    "the weight first": ("MatMul(w, x)", (6, 4), (2, 4, 3), 3 * 4 * 6),
    "the weight first, one matrix": ("MatMul(w, x)", (6, 4), (4, 3), 3 * 4 * 6),
    "the weight first, a vector": ("MatMul(w, x)", (6, 4), (4,), 4 * 6),
    "many matrices": ("MatMul(x, w)", (5, 4, 6), (2, 5, 3, 4), 5 * 3 * 4 * 6),
    "many matrices, one input": ("MatMul(x, w)", (5, 4, 6), (3, 4), 5 * 3 * 4 * 6),
    "many matrices, a vector": ("MatMul(x, w)", (5, 4, 6), (4,), 5 * 4 * 6),
    "many matrices first": ("MatMul(w, x)", (5, 6, 4), (2, 5, 4, 3), 5 * 3 * 4 * 6),
    "many matrices first, a vector": ("MatMul(w, x)", (5, 6, 4), (4,), 5 * 4 * 6),
    "one matrix for all samples": ("MatMul(x, w)", (1, 4, 6), (2, 3, 4), 3 * 4 * 6),
    "a vector as the weight": ("MatMul(x, w)", (4,), (2, 3, 4), 3 * 4),
    "a vector as the weight, first": ("MatMul(w, x)", (4,), (2, 4, 3), 3 * 4),
}


@pytest.mark.parametrize("name", PRODUCTS)
def test_multiply_adds_of_products(name: str) -> None:
    call, weight, shape, count = PRODUCTS[name]
    proto = parse(f"[layer] y = {call}", f"float[{','.join(map(str, shape))}] x", "float y", {"w": normal(*weight)})
    (results,) = run(proto, {"x": normal(*shape)})
    assert math.prod(results.shape) * 4 % count == 0
    assert layer_multiply_adds(node_named(imported(proto), "layer"), {"x": shape, "y": results.shape}) == count
