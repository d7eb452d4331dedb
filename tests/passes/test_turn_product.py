"""MatMuls with the constant on the left, or with a vector, are turned and quantized."""

from __future__ import annotations

import numpy as np
import pytest

import amct_onnx
from amct_onnx.errors import NothingToCompressError
from amct_onnx.graph import build
from amct_onnx.rewrite import prepare
from amct_onnx.runtime.simulator import open_simulator
from tests.models import initializers, normal, parse, run

# shapes of weight and data, and the operators that W @ x becomes
LEFT = {
    "matrix": ((5, 4), (4, 3), ["Transpose", "MatMul", "Transpose"]),
    "batched data": ((5, 4), (2, 4, 3), ["Transpose", "MatMul", "Transpose"]),
    "batched weight": ((2, 5, 4), (4, 3), ["Transpose", "MatMul", "Transpose"]),
    "both batched": ((2, 1, 5, 4), (3, 4, 3), ["Transpose", "MatMul", "Transpose"]),
    "vector of data": ((5, 4), (4,), ["MatMul"]),
    "batched weight, vector of data": ((2, 5, 4), (4,), ["MatMul"]),
    "vector of weights": ((4,), (2, 4, 3), ["Transpose", "MatMul", "Squeeze"]),
    "two vectors": ((4,), (4,), ["MatMul", "Squeeze"]),
    "one by one": ((1, 1), (1, 1), ["Transpose", "MatMul", "Transpose"]),
}
RIGHT = {
    "vector of weights": ((4,), (3, 4), ["MatMul", "Squeeze"]),
    "batched": ((4,), (2, 3, 4), ["MatMul", "Squeeze"]),
    "two vectors": ((4,), (4,), ["MatMul", "Squeeze"]),
}
CASES = [
    *(pytest.param("MatMul(w, x)", *case, id=f"left: {name}") for name, case in LEFT.items()),
    *(pytest.param("MatMul(x, w)", *case, id=f"right: {name}") for name, case in RIGHT.items()),
]


def model_of(product, weight, data, opset):
    shape = ",".join(map(str, data))
    return parse(f"[m] y = {product}", f"float[{shape}] x", "float[] y", {"w": normal(*weight, seed=1)}, opset=opset)


@pytest.mark.parametrize("opset", [9, 11, 13])
@pytest.mark.parametrize(("product", "weight", "data", "ops"), CASES)
def test_computes_the_same(product, weight, data, ops, opset):
    proto = model_of(product, weight, data, opset)
    built = build(prepare(proto, None).model).to_proto()
    assert [node.op_type for node in built.graph.node] == ops
    feed = {"x": normal(*data, seed=2)}
    w = initializers(proto)["w"]
    expected = w @ feed["x"] if "(w" in product else feed["x"] @ w
    (result,) = run(built, feed)
    assert result.shape == expected.shape
    np.testing.assert_allclose(result, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("product", "weight", "data", "ops"), CASES)
def test_every_form_multiplies_integers(product, weight, data, ops):
    proto = model_of(product, weight, data, 13)
    feed = {"x": normal(*data, seed=2)}
    result = amct_onnx.quantize(proto, [feed], act="minmax", trial=False)
    entry = result.record.layers["m"]
    w = np.clip(np.rint(initializers(proto)["w"] / np.float32(entry.scale_w[0])), -128, 127)
    x = np.rint(feed["x"] * (np.float32(1) / np.float32(entry.scale_d)))
    expected = (w @ x if "(w" in product else x @ w) * entry.scale_d * entry.scale_w[0]
    simulated = open_simulator(result.model("ascend")).run(None, feed)[0]
    np.testing.assert_allclose(simulated, expected, rtol=1e-6)
    np.testing.assert_array_equal(run(result.model("fake_quant"), feed, optimized=False)[0], simulated)
    noise = 2e-6 * np.abs(expected).max()
    np.testing.assert_allclose(run(result.model("qdq"), feed, optimized=False)[0], simulated, rtol=0, atol=noise)
    deploy = [node.op_type for node in result.model("ascend").graph.node if not node.op_type.startswith("Ascend")]
    assert deploy == ops


def test_one_scale_for_each_row_of_a_matrix_on_the_left():
    proto = model_of("MatMul(w, x)", (5, 4), (4, 3), 13)
    result = amct_onnx.quantize(proto, [normal(4, 3, seed=2)], formats=("qdq",), weights="arq", trial=False)
    w = initializers(proto)["w"]
    absmax = np.where(-w.min(axis=1) > w.max(axis=1), -w.min(axis=1) / 128, w.max(axis=1) / 127)
    np.testing.assert_allclose(result.record.layers["m"].scale_w, absmax, rtol=1e-6)


def test_rank_comes_from_inference_where_the_model_does_not_say():
    weights = {"w": normal(5, 4), "v": normal(6, 5)}
    proto = parse("[m] h = MatMul(w, x) r = Relu(h) [n] y = MatMul(v, r)", "float[4,3] x", "float[6,3] y", weights)
    feed = {"x": normal(4, 3, seed=2)}
    result = amct_onnx.quantize(proto, [feed], trial=False)
    assert set(result.record.layers) == {"m", "n"}
    exact = run(proto, feed)[0]
    for form in ("fake_quant", "qdq"):
        assert np.abs(run(result.model(form), feed)[0] - exact).max() < 0.1 * np.abs(exact).max()


def test_plan_as_text_gives_the_same_bytes(tmp_path):
    weights = {"w": normal(5, 4), "v": normal(6, 5), "u": normal(3)}
    nodes = "[m] h = MatMul(w, x) r = Relu(h) [n] s = MatMul(v, r) [o] y = MatMul(s, u)"
    proto = parse(nodes, "float[4,3] x", "float[6] y", weights)
    result = amct_onnx.quantize(proto, [normal(4, 3, seed=2)], trial=False)
    assert set(result.record.layers) == {"m", "n", "o"}
    result.save(tmp_path / "m")
    again = amct_onnx.apply(proto, tmp_path / "m_record.txt", strict=True)
    for form in ("ascend", "fake_quant", "qdq"):
        assert again.model(form).SerializeToString() == result.model(form).SerializeToString()


def test_unknown_rank_is_left_alone_with_its_reason():
    proto = parse("[m] y = MatMul(w, x)", "float[] x", "float[] y", {"w": normal(5, 4)})
    assert not proto.graph.input[0].type.tensor_type.HasField("shape")
    with pytest.raises(NothingToCompressError, match=r"constant is its first input.*declare the shape of its second"):
        amct_onnx.quantize(proto, [normal(4, 3, seed=2)], trial=False)


def test_constant_behind_a_transpose_is_taken_as_it_is():
    """``W^T @ x`` wants ``(W^T)^T = W`` as second input, which is there already."""
    nodes = "t = Transpose(w) [m] y = MatMul(t, x)"
    proto = parse(nodes, "float[4,3] x", "float[5,3] y", {"w": normal(4, 5)})
    model = prepare(proto, None).model
    assert [node.op for node in model.graph.nodes] == ["Transpose", "MatMul", "Transpose"]
    assert model.graph.nodes[1].inputs[1] is model.graph.initializers["w"]
    feed = {"x": normal(4, 3, seed=2)}
    np.testing.assert_allclose(run(build(model).to_proto(), feed)[0], run(proto, feed)[0], rtol=1e-6)


def test_two_products_share_data_and_weight():
    nodes = "[m] a = MatMul(w, x) [n] b = MatMul(v, x) [o] c = MatMul(w, z)"
    weights = {"w": normal(5, 4), "v": normal(6, 4)}
    proto = parse(nodes, "float[4,3] x, float[4,2] z", "float[5,3] a, float[6,3] b, float[5,2] c", weights)
    feed = {"x": normal(4, 3, seed=2), "z": normal(4, 2, seed=3)}
    result = amct_onnx.quantize(proto, [feed], trial=False)
    deploy = result.model("ascend")
    assert [node.op_type for node in deploy.graph.node].count("AscendQuant") == 2
    products = {node.name: list(node.input) for node in deploy.graph.node if node.op_type == "MatMul"}
    assert products["m"][0] == products["n"][0]
    assert products["m"][1] == products["o"][1]
    for expected, made in zip(run(proto, feed), run(result.model("fake_quant"), feed), strict=True):
        assert np.abs(made - expected).max() < 0.1 * np.abs(expected).max()


def test_half_precision():
    proto = parse("[m] y = MatMul(w, x)", "float16[4,3] x", "float16[5,3] y", {"w": normal(5, 4).astype(np.float16)})
    feed = {"x": normal(4, 3, seed=2).astype(np.float16)}
    result = amct_onnx.quantize(proto, [feed], trial=False)
    exact = run(proto, feed)[0].astype(np.float32)
    for form in ("fake_quant", "qdq"):
        made = run(result.model(form), feed)[0]
        assert made.dtype == np.float16
        assert np.abs(made - exact).max() < 0.1 * np.abs(exact).max()


def test_balance_factors_come_from_the_rows_of_the_data():
    proto = model_of("MatMul(w, x)", (5, 4), (2, 4, 3), 13)
    x = normal(2, 4, 3, seed=3) * np.array([[8], [1], [1], [0.5]], np.float32)
    result = amct_onnx.quantize(proto, [{"x": x}], dmq=0.5, trial=False)
    expected = np.sqrt(np.abs(x).max(axis=(0, 2)) / np.abs(initializers(proto)["w"]).max(axis=0))
    np.testing.assert_allclose(result.record.layers["m"].tensor_balance_factor, expected, rtol=1e-6)
    exact = run(proto, {"x": x})[0]
    for form in ("fake_quant", "qdq"):
        assert np.abs(run(result.model(form), {"x": x})[0] - exact).max() < 0.05 * np.abs(exact).max()
