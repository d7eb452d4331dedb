"""Layers as products of rows with a weight, against onnxruntime's results, for all that an operator can do."""

from __future__ import annotations

import numpy as np
import pytest

from amct_onnx.analyse.fitting.moments import Moments, about_common_bias, ridge_fit
from amct_onnx.analyse.fitting.views import layer_view, why_no_view
from tests.models import Array, imported, node_named, normal, parse, run

VIEWS = {
    "convolution": (
        "Conv<pads = [1,0,2,1], strides = [2,1], dilations = [1,2]>(x, w)",
        normal(6, 4, 3, 2),
        (2, 4, 9, 8),
    ),
    "same padding": ('Conv<auto_pad = "SAME_UPPER", strides = [2,2]>(x, w)', normal(6, 4, 3, 3), (2, 4, 9, 8)),
    "groups": ("Conv<group = 2>(x, w)", normal(6, 2, 3, 3), (2, 4, 5, 6)),
    "one dimension": ("Conv<pads = [1,1]>(x, w)", normal(6, 4, 3), (2, 4, 9)),
    "Gemm": ("Gemm(x, w)", normal(4, 6), (5, 4)),
    "turned Gemm": ("Gemm<transB = 1>(x, w)", normal(6, 4), (5, 4)),
    "Gemm of a turned input": ("Gemm<transA = 1, alpha = 0.5>(x, w)", normal(4, 6), (4, 5)),
    "product": ("MatMul(x, w)", normal(4, 6), (2, 3, 4)),
    "product of a vector": ("MatMul(x, w)", normal(4, 6), (4,)),
    "weight first": ("MatMul(w, x)", normal(6, 4), (2, 4, 3)),
    "weight first, a vector": ("MatMul(w, x)", normal(6, 4), (4,)),
    "many matrices": ("MatMul(x, w)", normal(5, 4, 6), (2, 5, 3, 4)),
    "many matrices, one input": ("MatMul(x, w)", normal(5, 4, 6), (3, 4)),
    "many matrices, a vector": ("MatMul(x, w)", normal(5, 4, 6), (4,)),
    "matrices and rows in turn": ("MatMul(x, w)", normal(5, 1, 4, 6), (1, 2, 3, 4)),
    "many matrices first": ("MatMul(w, x)", normal(5, 6, 4), (2, 5, 4, 3)),
    "many matrices first, a vector": ("MatMul(w, x)", normal(5, 6, 4), (4,)),
}

TRANSPOSED = {
    "as wide as the stride": ("strides = [2,2]", (4, 6, 2, 2), (2, 4, 5, 3)),
    "wider than the stride": ("strides = [2,2], pads = [1,1,1,1]", (4, 6, 4, 4), (2, 4, 5, 3)),
    "uneven phases": ("strides = [2,2], pads = [1,1,1,1], output_padding = [1,1]", (4, 6, 3, 3), (2, 4, 5, 3)),
    "other strides": ("strides = [3,1], pads = [0,1,2,0]", (4, 6, 5, 2), (2, 4, 4, 6)),
    "without strides": ("pads = [1,1,1,1]", (4, 6, 3, 3), (2, 4, 5, 3)),
    "dilated": ("strides = [2,2], dilations = [3,1]", (4, 6, 2, 3), (2, 4, 5, 3)),
    "groups": ("strides = [2,2], group = 2", (4, 3, 2, 2), (2, 4, 5, 3)),
    "one dimension": ("strides = [2], pads = [1,0]", (4, 6, 3), (2, 4, 7)),
    "three dimensions": ("strides = [2,1,2]", (4, 3, 2, 2, 3), (1, 4, 2, 3, 2)),
    "same padding": ('strides = [2,2], auto_pad = "SAME_UPPER"', (4, 6, 3, 3), (2, 4, 5, 3)),
    "same padding, lower": ('strides = [2,2], auto_pad = "SAME_LOWER"', (4, 6, 3, 3), (2, 4, 5, 3)),
    "a shape": ("strides = [2,2], output_shape = [10,7]", (4, 6, 4, 4), (2, 4, 5, 3)),
}


@pytest.mark.parametrize("name", VIEWS)
def test_rows_times_weight_are_the_results(name: str) -> None:
    call, weight, shape = VIEWS[name]
    rows, results = _rows(call, weight, shape)
    assert results.size == _result(call, weight, shape).size
    _same(rows, results)


@pytest.mark.parametrize("name", TRANSPOSED)
def test_rows_of_a_transposed_convolution_meet_the_weight_by_phase(name: str) -> None:
    attributes, weight_shape, shape = TRANSPOSED[name]
    rows, results = _rows(f"ConvTranspose<{attributes}>(x, w)", normal(*weight_shape), shape)
    assert len(rows) > 1
    _same(rows, results)


@pytest.mark.parametrize("name", TRANSPOSED)
def test_every_place_of_a_transposed_convolution_is_a_row(name: str) -> None:
    attributes, weight_shape, shape = TRANSPOSED[name]
    call = f"ConvTranspose<{attributes}>(x, w)"
    results = _rows(call, normal(*weight_shape), shape)[1]
    np.testing.assert_array_equal(np.unique(results), np.unique(_result(call, normal(*weight_shape), shape)))


@pytest.mark.parametrize(
    ("call", "weight", "shape"),
    [
        ("Conv<group = 2>(x, w)", (6, 2, 3, 3), (0, 4, 5, 6)),
        ("ConvTranspose<strides = [2,2]>(x, w)", (4, 6, 2, 2), (0, 4, 5, 3)),
        ("ConvTranspose<strides = [3], pads = [1,1]>(x, w)", (4, 6, 4), (1, 4, 1)),
        ("MatMul(x, w)", (4, 6), (0, 4)),
        ("Gemm(x, w)", (4, 6), (0, 4)),
    ],
)
def test_what_has_no_whole_row_has_none(call: str, weight: tuple[int, ...], shape: tuple[int, ...]) -> None:
    rows, results = _rows(call, normal(*weight), shape)
    assert len(rows) == len(results) == 0


@pytest.mark.parametrize(
    ("call", "shape", "extra"),
    [
        ("Gemm<beta = 2.0>(x, w, c)", (5, 4), normal(5, 6, seed=3)),
        ("Gemm<beta = 0.5, alpha = 3.0>(x, w, c)", (5, 4), normal(5, 1, seed=3)),
        ("Gemm<beta = 0.0>(x, w, c)", (5, 4), normal(5, 6, seed=3)),
    ],
)
@pytest.mark.parametrize("is_computed", [False, True])
def test_what_a_gemm_adds_to_each_row_is_not_fitted(
    call: str, shape: tuple[int, ...], extra: Array, is_computed: bool
) -> None:
    sizes = ",".join(map(str, extra.shape))
    text = f"[layer] y = {call}"
    inputs = f"float[5,4] x, float[{sizes}] c" if is_computed else "float[5,4] x"
    constants = {"w": normal(4, 6)} if is_computed else {"w": normal(4, 6), "c": extra}
    proto = parse(text, inputs, "float y", constants)
    x = normal(*shape, seed=9)
    feed = {"x": x, "c": extra} if is_computed else {"x": x}
    view = layer_view(node_named(imported(proto), "layer"))
    rows, results = view.rows(feed, {"y": run(proto, feed)[0]}, np.random.default_rng(0))
    np.testing.assert_allclose(np.einsum("npc,prc->npr", rows, view.weight(normal(4, 6))), results, atol=1e-4)


def test_a_computed_bias_of_a_convolution_is_not_fitted() -> None:
    proto = parse("[layer] y = Conv(x, w, c)", "float[2,4,5,5] x, float[6] c", "float y", {"w": normal(6, 4, 3, 3)})
    feed = {"x": normal(2, 4, 5, 5, seed=9), "c": normal(6, seed=3)}
    view = layer_view(node_named(imported(proto), "layer"))
    rows, results = view.rows(feed, {"y": run(proto, feed)[0]}, np.random.default_rng(0))
    np.testing.assert_allclose(np.einsum("npc,prc->npr", rows, view.weight(normal(6, 4, 3, 3))), results, atol=1e-4)


@pytest.mark.parametrize(
    ("call", "shape", "weight", "reason"),
    [
        ("Conv<group = 4>(x, w)", "2,4,5,5", normal(4, 1, 3, 3), "mixes no channels"),
        ("ConvTranspose<group = 4>(x, w)", "2,4,5,5", normal(4, 1, 3, 3), "mixes no channels"),
        ("ConvTranspose<strides = [3,3]>(x, w)", "2,4,5,5", normal(4, 2, 2, 2), "meet no place of its kernel"),
        ("ConvTranspose<strides = [2,2], dilations = [2,2]>(x, w)", "2,4,5,5", normal(4, 2, 3, 3), "meet no place"),
        ("Gemm<alpha = 0.0>(x, w)", "5,4", normal(4, 6), "alpha is 0"),
        ("MatMul(x, w)", "5,4", normal(4), "no weight"),
        ("Relu(x)", "5,4", normal(4), "a Relu"),
    ],
)
def test_what_cannot_be_fitted_says_why(call: str, shape: str, weight: Array, reason: str) -> None:
    proto = parse(f"[layer] y = {call}", f"float[{shape}] x", "float y", {"w": weight})
    assert reason in why_no_view(node_named(imported(proto), "layer"))


def test_parts_with_a_common_bias_are_fitted_as_one() -> None:
    """Against least squares over both parts with one column of ones, and rows that hold the penalty."""
    rng = np.random.default_rng(4)
    xs = [rng.normal(size=(40, 3)) + 2, rng.normal(size=(40, 3)) - 1]
    ys = [x @ rng.normal(size=(3, 2)) + [1.0, -2.0] + 0.1 * rng.normal(size=(40, 2)) for x in xs]
    old = [rng.normal(size=(2, 3)) for _ in xs]
    parts = [Moments(), Moments()]
    for part, x, y in zip(parts, xs, ys, strict=True):
        part.update(x.astype(np.float32), y.astype(np.float32))
    shared = about_common_bias(parts, old, ridge=1e-2)
    fits = [ridge_fit(part, weight, 1e-2) for part, weight in zip(shared, old, strict=True)]
    np.testing.assert_allclose(fits[0][1], fits[1][1])

    penalties = [np.sqrt(40 * part.about_zero.penalty(1e-2)) for part in parts]
    left = np.zeros((2 * 40 + 2 * 3, 7))
    right = np.zeros((len(left), 2))
    for place, (x, y) in enumerate(zip(xs, ys, strict=True)):
        columns = slice(3 * place, 3 * place + 3)
        left[40 * place : 40 * place + 40, columns], left[40 * place : 40 * place + 40, 6] = x, 1
        right[40 * place : 40 * place + 40] = y
        left[80 + 3 * place : 83 + 3 * place, columns] = np.diag(penalties[place])
        right[80 + 3 * place : 83 + 3 * place] = penalties[place][:, None] * old[place].T
    found = np.linalg.lstsq(left, right, rcond=None)[0]
    np.testing.assert_allclose(fits[0][1], found[6], rtol=1e-4)
    np.testing.assert_allclose(fits[0][0], found[:3].T, rtol=1e-3, atol=1e-5)
    np.testing.assert_allclose(fits[1][0], found[3:6].T, rtol=1e-3, atol=1e-5)


def _result(call: str, weight: Array, shape: tuple[int, ...]) -> Array:
    sizes = ",".join(map(str, shape))
    proto = parse(f"[layer] y = {call}", f"float[{sizes}] x", "float y", {"w": weight})
    return run(proto, {"x": normal(*shape, seed=9)})[0]


def _rows(call: str, weight: Array, shape: tuple[int, ...]) -> tuple[Array, Array]:
    """What the rows make with the weight, and the results."""
    sizes = ",".join(map(str, shape))
    proto = parse(f"[layer] y = {call}", f"float[{sizes}] x", "float y", {"w": weight})
    view = layer_view(node_named(imported(proto), "layer"))
    seen = view.weight(weight)
    np.testing.assert_array_equal(view.stored(seen), weight)
    assert seen.shape[0] == view.parts
    assert seen.shape[2] == view.columns
    assert seen.shape[1] * view.parts == view.channels * view.copies
    x = normal(*shape, seed=9)
    y = run(proto, {"x": x})[0]
    rows, results = view.rows({"x": x}, {"y": y}, np.random.default_rng(0))
    assert y.shape[view.axis(y.ndim)] == view.channels
    return np.einsum("npc,prc->npr", rows, seen), results


def _same(made: Array, results: Array) -> None:
    np.testing.assert_allclose(made, results, atol=1e-4)
