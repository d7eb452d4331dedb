"""Gemms with a transposed data input, or with a C that is no bias row, are split and quantized."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime as ort
import pytest

import amct_onnx
from amct_onnx.errors import NothingToCompressError
from amct_onnx.graph import build
from amct_onnx.record import load_record
from amct_onnx.rewrite import prepare
from amct_onnx.runtime.simulator import open_simulator
from tests.models import Array, normal, parse, run

A, ROWS = "float[3,4] x", "float[3,5] y"
W = normal(4, 5, seed=1)

# name: the Gemm, further inputs, constants, operators it becomes
CASES = {
    "transA": ("Gemm<transA = 1>(x, w)", "", {}, ["Transpose", "Gemm"]),
    "transA and row": ("Gemm<transA = 1, beta = 2.0>(x, w, c)", "", {"c": normal(5)}, ["Transpose", "Gemm"]),
    "matrix": ("Gemm(x, w, c)", "", {"c": normal(3, 5)}, ["Gemm", "Add"]),
    "column": ("Gemm<alpha = 0.5, beta = -2.0>(x, w, c)", "", {"c": normal(3, 1)}, ["Gemm", "Add"]),
    "computed": ("Gemm<alpha = 0.5>(x, w, c)", ", float[3,5] c", {}, ["Gemm", "Add"]),
    "computed row": ("Gemm<beta = 0.5>(x, w, c)", ", float[5] c", {}, ["Gemm", "Mul", "Add"]),
    "of no weight": ("Gemm<beta = 0.0>(x, w, c)", ", float[3,5] c", {}, ["Gemm"]),
    "transB": (
        "Gemm<transA = 1, transB = 1>(x, v, c)",
        "",
        {"c": normal(3, 1)},
        ["Transpose", "Gemm", "Add"],
    ),
    "scalar": ("Gemm(x, w, c)", "", {"c": np.array(0.5, np.float32)}, ["Gemm"]),
    "one": ("Gemm(x, w, c)", "", {"c": normal(1)}, ["Gemm"]),
    "row": ("Gemm(x, w, c)", "", {"c": normal(1, 5)}, ["Gemm"]),
}


def model_of(case: str, opset: int = 13) -> onnx.ModelProto:
    gemm, inputs, weights, _ = CASES[case]
    data = "float[4,3] x" if "transA" in gemm else A
    used = {"v": W.T.copy()} if "v" in gemm else {"w": W}
    return parse(f"[fc] y = {gemm}", data + inputs, ROWS, {**used, **weights}, opset=opset)


def feeds_of(proto: onnx.ModelProto) -> dict[str, Array]:
    shapes = {info.name: [dim.dim_value for dim in info.type.tensor_type.shape.dim] for info in proto.graph.input}
    return {name: normal(*shape, seed=7 + len(shape)) for name, shape in shapes.items()}


@pytest.mark.parametrize("case", CASES)
def test_computes_the_same(case: str) -> None:
    proto = model_of(case)
    built = build(prepare(proto, None).model).to_proto()
    assert [node.op_type for node in built.graph.node] == CASES[case][3]
    assert "fc" in {node.name for node in built.graph.node}
    feed = feeds_of(proto)
    np.testing.assert_allclose(run(built, feed)[0], run(proto, feed)[0], rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("case", CASES)
def test_every_form_quantizes_it(case: str) -> None:
    """Against the product of integers by numpy, and C beside it in float where it is no bias."""
    proto = model_of(case)
    feed = feeds_of(proto)
    result = amct_onnx.quantize(proto, [feed], act="minmax", trial=False)
    entry = result.record.layers["fc"]
    exact = run(proto, feed)[0]
    outputs = {form: run(result.model(form), feed, optimized=False)[0] for form in ("fake_quant", "qdq")}
    simulated = open_simulator(result.model("ascend")).run(None, feed)[0]
    np.testing.assert_array_equal(simulated, outputs["fake_quant"])
    np.testing.assert_allclose(outputs["qdq"], simulated, rtol=0, atol=2e-6 * np.abs(exact).max())
    attrs = {attribute.name: onnx.helper.get_attribute_value(attribute) for attribute in proto.graph.node[0].attribute}
    data = feed["x"].T if attrs.get("transA") else feed["x"]
    steps = np.rint(data * (np.float32(1) / np.float32(entry.scale_d)))
    weight = np.clip(np.rint(W * np.float32(attrs.get("alpha", 1)) / np.float32(entry.scale_w[0])), -128, 127)
    product = steps @ weight * entry.scale_d * entry.scale_w[0]
    constants = {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in proto.graph.initializer}
    addend = {**constants, **feed}.get("c", np.zeros(1)) * attrs.get("beta", 1)
    step = entry.scale_d * entry.scale_w[0]
    np.testing.assert_allclose(simulated, product + addend, rtol=0, atol=0.51 * step)
    assert [info.name for info in result.model("ascend").graph.output] == ["y"]


def test_result_read_by_integer_kernels() -> None:
    """What the source does not compute gets no pair of its own in the QDQ form; layers behind are quantized."""
    nodes = "[fc] h = Gemm<transA = 1>(x, w, c) r = Relu(h) [g] y = Gemm(r, u)"
    proto = parse(nodes, "float[4,3] x", "float[3,2] y", {"w": W, "c": normal(3, 5), "u": normal(5, 2)})
    feed = {"x": normal(4, 3, seed=3)}
    result = amct_onnx.quantize(proto, [feed], trial=False)
    assert set(result.record.layers) == {"fc", "g"}
    assert not [name for name in result.tensors.layers if "product" in name]
    exact, quantized = run(proto, feed)[0], run(result.model("qdq"), feed)[0]
    assert np.abs(quantized - exact).max() < 0.1 * np.abs(exact).max()


def test_plan_as_text_gives_the_same_bytes(tmp_path) -> None:
    proto = model_of("transB")
    result = amct_onnx.quantize(proto, [feeds_of(proto)], trial=False)
    result.save(tmp_path / "m")
    again = amct_onnx.apply(proto, tmp_path / "m_record.txt", strict=True)
    for form in ("ascend", "fake_quant", "qdq"):
        assert again.model(form).SerializeToString() == result.model(form).SerializeToString()


def test_before_broadcasting_it_is_left_alone() -> None:
    proto = parse("[fc] y = Gemm<transA = 1>(x, w, c)", "float[4,3] x", ROWS, {"w": W, "c": normal(3, 5)}, opset=6)
    with pytest.raises(NothingToCompressError, match="transA must be 0"):
        amct_onnx.quantize(proto, [feeds_of(proto)], trial=False)


def test_half_precision() -> None:
    weights = {"w": W.astype(np.float16), "c": normal(3, 1).astype(np.float16)}
    proto = parse("[fc] y = Gemm<transA = 1>(x, w, c)", "float16[4,3] x", "float16[3,5] y", weights)
    feed = {"x": normal(4, 3, seed=3).astype(np.float16)}
    result = amct_onnx.quantize(proto, [feed], trial=False)
    assert set(result.record.layers) == {"fc"}
    exact = run(proto, feed)[0].astype(np.float32)
    for form in ("fake_quant", "qdq"):
        quantized = run(result.model(form), feed)[0]
        assert quantized.dtype == np.float16
        assert np.abs(quantized - exact).max() < 0.1 * np.abs(exact).max()


def test_balance_factors_come_from_the_channels_of_the_untransposed_tensor() -> None:
    """f = (act_max / weight_max)^0.5, where channels of the data are rows of x."""
    proto = model_of("transA")
    x = normal(4, 3, seed=3) * np.array([[8], [1], [1], [0.5]], np.float32)
    result = amct_onnx.quantize(proto, [{"x": x}], dmq=0.5, trial=False)
    expected = np.sqrt(np.abs(x).max(axis=1) / np.abs(W).max(axis=1))
    np.testing.assert_allclose(result.record.layers["fc"].tensor_balance_factor, expected, rtol=1e-6)
    exact = run(proto, {"x": x})[0]
    for form in ("fake_quant", "qdq"):
        assert np.abs(run(result.model(form), {"x": x})[0] - exact).max() < 0.05 * np.abs(exact).max()


@pytest.mark.parametrize(
    ("layer", "data"), [("Gemm<transA = 1>(x, w)", "float[4,3] x"), ("MatMul(v, x)", "float[4,3] x")]
)
def test_a_loop_of_the_users_own_sees_what_such_layers_read(layer: str, data: str, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    weights = {"w": W} if "w" in layer else {"v": W.T.copy()}
    proto = parse(f"[fc] y = {layer}", data, "float[a,b] y", weights)
    onnx.save(proto, "model.onnx")
    amct_onnx.create_quant_config("config.json", "model.onnx", batch_num=1)
    amct_onnx.quantize_model("config.json", "model.onnx", "modified.onnx", "record.txt")
    feed = {"x": normal(4, 3, seed=3)}
    ort.InferenceSession("modified.onnx", amct_onnx.AMCT_SO).run(None, feed)
    amct_onnx.save_model("modified.onnx", "record.txt", "out")
    assert load_record("record.txt").record.layers["fc"].scale_d == pytest.approx(np.ptp(feed["x"]) / 255, rel=0.3)
    exact, quantized = run(proto, feed)[0], run(onnx.load("out_fake_quant_model.onnx"), feed)[0]
    assert np.abs(quantized - exact).max() < 0.1 * np.abs(exact).max()
