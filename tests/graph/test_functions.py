"""Layers inside a model's own functions: the functions are inlined, under names that do not change."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import ModelProto

import amct_onnx
from amct_onnx.errors import NothingToCompressError
from amct_onnx.graph import build
from amct_onnx.rewrite import prepare
from amct_onnx.runtime.simulator import open_simulator
from tests.models import normal, parse, run, summary

FUNCTIONS = """
    <opset_import: ["": 17], domain: "own"> block (a, w, b) => (r) { h = MatMul(a, w) s = Add(h, b) r = Relu(s) }
    <opset_import: ["": 17, "own": 1], domain: "own"> twice <slope> (a, w, b) => (r) {
        t = own.block(a, w, b) u = LeakyRelu<alpha: float = @slope>(t) r = own.block(u, w, b) }
    <opset_import: ["": 17], domain: "own"> wave (a) => (r) { t = Sin(a) r = Cos(t) }
"""
NODES = "[first] h = own.block(x, w, b) g = own.twice<slope = 0.1>(h, w, b) p = own.wave(g) [fc] y = MatMul(p, w)"


def model_of(nodes: str = NODES, functions: str = FUNCTIONS, opset: int = 17) -> ModelProto:
    weights = {"w": normal(4, 4, seed=1), "b": normal(4, seed=2)}
    inputs = "float[2,4] x" + (", bool c" if "(c)" in nodes else "")
    return parse(nodes, inputs, "float[2,4] y", weights, domains='"own": 1', functions=functions, opset=opset)


FEED = {"x": normal(2, 4, seed=3)}
LAYERS = ["block_MatMul_0__1", "block_MatMul_0__3", "block_MatMul_0__4", "fc"]


def test_names_count_the_calls() -> None:
    built = build(prepare(model_of(), None).model).to_proto()
    assert summary(built.graph.node) == [
        "block_MatMul_0__1: MatMul(x, w) -> h__1",
        "block_Add_1__1: Add(h__1, b) -> s__1",
        "block_Relu_2__1: Relu(s__1) -> h",
        "block_MatMul_0__3: MatMul(h, w) -> h__3",
        "block_Add_1__3: Add(h__3, b) -> s__3",
        "block_Relu_2__3: Relu(s__3) -> t__2",
        "twice_LeakyRelu_1__2: LeakyRelu(t__2) -> u__2",
        "block_MatMul_0__4: MatMul(u__2, w) -> h__4",
        "block_Add_1__4: Add(h__4, b) -> s__4",
        "block_Relu_2__4: Relu(s__4) -> g",
        "wave_2: wave(g) -> p",
        "fc: MatMul(p, w) -> y",
    ]
    assert [function.name for function in built.functions] == ["wave"]


def test_names_of_the_functions_nodes_are_kept() -> None:
    proto = model_of()
    proto.functions[0].node[0].name = "linear"
    assert "linear__1" in {node.name for node in prepare(proto, None).model.graph.nodes}


def test_every_form_quantizes_them(tmp_path: Path) -> None:
    proto = model_of()
    result = amct_onnx.quantize(proto, [FEED], trial=False)
    assert list(result.record.layers) == LAYERS
    assert result.report.refusals == ()
    exact = run(proto, FEED)[0]
    for form in ("fake_quant", "qdq"):
        assert np.abs(run(result.model(form), FEED)[0] - exact).max() < 0.1 * np.abs(exact).max()
    result.save(tmp_path / "m")
    again = amct_onnx.apply(proto, tmp_path / "m_record.txt", strict=True)
    for form in ("ascend", "fake_quant", "qdq"):
        assert again.model(form).SerializeToString() == result.model(form).SerializeToString()


def test_single_calls_can_be_skipped() -> None:
    result = amct_onnx.quantize(model_of(), [FEED], skip=["block_MatMul_0__3"], trial=False)
    assert list(result.record.layers) == ["block_MatMul_0__1", "block_MatMul_0__4", "fc"]


def test_with_a_raised_operator_set() -> None:
    proto = model_of(functions=FUNCTIONS.replace("17", "11"), opset=11)
    result = amct_onnx.quantize(proto, [FEED], formats=("fake_quant", "qdq"), trial=False)
    assert list(result.record.layers) == LAYERS
    exact = run(proto, FEED)[0]
    assert np.abs(run(result.model("qdq"), FEED)[0] - exact).max() < 0.1 * np.abs(exact).max()


def test_weights_in_another_file_do_not_move(tmp_path: Path) -> None:
    onnx.save(model_of(), tmp_path / "m.onnx", save_as_external_data=True, location="m.data", size_threshold=0)
    (tmp_path / "out").mkdir()
    result = amct_onnx.quantize(tmp_path / "m.onnx", [FEED], trial=False)
    expected = amct_onnx.quantize(model_of(), [FEED], trial=False)
    assert result.record_text() == expected.record_text()
    result.save(tmp_path / "out" / "m")
    np.testing.assert_array_equal(
        run(tmp_path / "out" / "m_fake_quant_model.onnx", FEED)[0], run(expected.model("fake_quant"), FEED)[0]
    )


def test_call_inside_a_body() -> None:
    proto = model_of(
        """[branch] y = If(c) <then_branch = one () => (float[2,4] t) { t = own.block(x, w, b) },
                               else_branch = two () => (float[2,4] e) { e = Identity(x) }>"""
    )
    feed = {**FEED, "c": np.array(True)}
    result = amct_onnx.quantize(proto, [feed], trial=False)
    assert list(result.record.layers) == ["block_MatMul_0__1"]
    exact = run(proto, feed)[0]
    made = run(result.model("fake_quant"), feed)[0]
    assert np.abs(made - exact).max() < 0.1 * np.abs(exact).max()
    np.testing.assert_array_equal(
        open_simulator(result.model("ascend")).run(None, feed)[0],
        run(result.model("fake_quant"), feed, optimized=False)[0],
    )


def test_function_of_another_operator_set_is_reported() -> None:
    proto = model_of("[call] h = own.block(x, w, b) [fc] y = MatMul(h, w)", FUNCTIONS.replace("17", "16"))
    result = amct_onnx.quantize(proto, [FEED], trial=False)
    assert list(result.record.layers) == ["fc"]
    (refusal,) = result.report.refusals
    assert (refusal.node, "another operator set" in refusal.reason) == ("call", True)
    with pytest.raises(NothingToCompressError, match="function of the model's own"):
        amct_onnx.quantize(model_of("[call] y = own.block(x, w, b)", FUNCTIONS.replace("17", "16")), [FEED])


def test_inspect_and_a_loop_of_the_users_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    onnx.save(model_of(), "model.onnx")
    facts = {fact.name: fact for fact in amct_onnx.inspect("model.onnx").facts}
    assert list(facts) == LAYERS
    assert (facts["block_MatMul_0__3"].input_shape, facts["block_MatMul_0__3"].multiply_adds) == ((2, 4), 32)
    amct_onnx.create_quant_config("config.json", "model.onnx", batch_num=1)
    amct_onnx.quantize_model("config.json", "model.onnx", "modified.onnx", "record.txt")
    ort.InferenceSession("modified.onnx", amct_onnx.AMCT_SO).run(None, FEED)
    amct_onnx.save_model("modified.onnx", "record.txt", "out")
    exact = run(model_of(), FEED)[0]
    made = run(onnx.load("out_fake_quant_model.onnx"), FEED)[0]
    assert np.abs(made - exact).max() < 0.1 * np.abs(exact).max()
