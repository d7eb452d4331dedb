"""Weights that nodes compute from constants: folded with the right values, and nothing else is touched."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import ModelProto

import amct_onnx
from amct_onnx.graph import build
from amct_onnx.rewrite import OutputForm, prepare
from tests.models import Array, initializers, normal, parse, run
from tests.passes.fusing import operators

IMAGE, ROWS = "float[n,3,8,8] x", "float[n,4] x"
W = {
    "w": normal(4, 3, 3, 3),
    "h": normal(4, 3, 3, 3, seed=1).astype(np.float16),
    "flat": normal(4, 27, seed=2),
    "m": normal(6, 4, seed=3),
    "gain": normal(4, 1, 1, 1, seed=4),
    "bias": normal(1, 4, seed=5),
    "shape": np.array([4, 3, 3, 3]),
    "one": np.array([1]),
    "p": normal(6, seed=6),
    "rows": np.array([1, 4, -1]),
    "p4": normal(4, seed=7),
    "z4": np.zeros(4, np.float32),
}

CASES = {
    "a cast": ("c = Cast<to = 1>(h) [L] y = Conv(x, c)", IMAGE),
    "a layout": ("c = Reshape(flat, shape) [L] y = Conv(x, c)", IMAGE),
    "a transposed matrix": ("c = Transpose<perm = [1, 0]>(m) [L] y = MatMul(x, c)", ROWS),
    "a fill": ("c = ConstantOfShape<value = float[1] {0.25}>(shape) [L] y = Conv(x, c)", IMAGE),
    "weight normalization": (
        "q = Mul(w, w) s = ReduceSum<keepdims = 1>(q, axes) r = Sqrt(s) d = Div(w, r) c = Mul(d, gain) "
        "[L] y = Conv(x, c)",
        IMAGE,
    ),
    "weight standardization": (
        "r = Reshape(w, rows) d, u0, u1 = BatchNormalization<training_mode = 1>(r, p4, z4, z4, p4) "
        "c = Reshape(d, shape) [L] y = Conv(x, c)",
        IMAGE,
    ),
    "a bias too": ("b = Squeeze(bias, axis) [L] y = Conv(x, w, b)", IMAGE),
    "an attribute of floats": (
        "k = Constant<value_floats = [0.5, 1.5, -1.0, 2.0]>() [L] y = Conv(x, w, k)",
        IMAGE,
    ),
    "the bias of a product": (
        "c = Transpose<perm = [1, 0]>(m) b = Cast<to = 1>(p) [L] s = MatMul(x, c) y = Add(b, s)",
        ROWS,
    ),
}


def model(nodes: str, inputs: str, outputs: str = "float y") -> ModelProto:
    values = {**W, "axes": np.array([1, 2, 3]), "axis": np.array([0])}
    return parse(nodes, inputs, outputs, {name: array for name, array in values.items() if f"{name}" in nodes})


def feed(inputs: str, seed: int = 9) -> dict[str, Array]:
    return {"x": normal(*((2, 3, 8, 8) if inputs == IMAGE else (2, 4)), seed=seed)}


@pytest.mark.parametrize("case", CASES)
def test_the_layer_is_quantized(case: str) -> None:
    nodes, inputs = CASES[case]
    source = model(nodes, inputs)
    prepared = build(prepare(source, None).model).to_proto()
    assert operators(prepared) in (["Conv"], ["MatMul"], ["MatMul", "Add"])
    np.testing.assert_allclose(run(prepared, feed(inputs))[0], run(source, feed(inputs))[0], rtol=1e-5, atol=1e-6)
    result = amct_onnx.quantize(source, [feed(inputs, seed) for seed in range(4)], trial=False)
    assert set(result.record.layers) == {"L"}
    (want,), (got,) = run(source, feed(inputs)), run(result.models[OutputForm.QDQ].to_proto(), feed(inputs))
    assert 10 * np.log10(np.square(want).sum() / max(np.square(want - got).sum(), 1e-30)) > 20


def test_what_others_read_of_the_chain_stays() -> None:
    """A tied embedding: the table is looked up and, transposed, multiplied with; the lookup stays equal to the bit."""
    source = parse(
        "e = Gather(m, ids) c = Transpose<perm = [1, 0]>(m) [L] y = MatMul(e, c) k = Neg(c)",
        "int64[n] ids",
        "float y, float e, float k",
        {"m": W["m"]},
    )
    feeds = [{"ids": np.array([seed, 5, 2])} for seed in range(4)]
    result = amct_onnx.quantize(source, feeds, trial=False)
    proto = result.models[OutputForm.QDQ].to_proto()
    (_, want_e, want_k), (_, e, k) = run(source, feeds[1]), run(proto, feeds[1])
    np.testing.assert_array_equal(e, want_e)
    np.testing.assert_array_equal(k, want_k)


def test_layers_share_what_one_chain_makes() -> None:
    source = model("c = Cast<to = 1>(h) [L] s = Conv(x, c) [M] t = Conv(x, c) y = Add(s, t)", IMAGE)
    result = amct_onnx.quantize(source, [feed(IMAGE, seed) for seed in range(4)], trial=False)
    assert set(result.record.layers) == {"L", "M"}
    deploy = initializers(result.models[OutputForm.ASCEND].to_proto())
    assert sum(array.dtype == np.int8 for array in deploy.values()) == 1


@pytest.mark.parametrize(
    ("nodes", "reason"),
    [
        ("c = Mul(w, g) [L] y = Conv(x, c)", "computed at run time"),
        ("c = RandomNormal<shape = [4, 3, 3, 3]>() [L] y = Conv(x, c)", "computed at run time"),
        ("c = DequantizeLinear(i, s) [L] y = Conv(x, c)", "quantized already"),
    ],
)
def test_what_is_no_constant_stays_float(nodes: str, reason: str) -> None:
    weights = {"w": W["w"], "i": np.ones((4, 3, 3, 3), np.int8), "s": np.array(0.5, np.float32)}
    used = {name: array for name, array in weights.items() if f"({name}" in nodes or f" {name})" in nodes}
    source = parse(nodes, IMAGE + (", float[1] g" if "g)" in nodes else ""), "float y", used)
    with pytest.raises(amct_onnx.errors.NothingToCompressError, match=reason):
        amct_onnx.quantize(source, [{**feed(IMAGE), "g": np.ones(1, np.float32)} if "g)" in nodes else feed(IMAGE)])
