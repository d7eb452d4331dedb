"""Layers inside control-flow bodies run on integers in the QDQ form."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import GraphProto, ModelProto

import amct_onnx
from tests.models import Array, normal, parse, run

pytest.importorskip("onnxruntime_extensions", reason="only observers see into bodies")

INPUTS, OUTPUTS = "float[n,8,6,6] x, bool c", "float[n,8,6,6] y"
WEIGHTS = {
    "w": normal(8, 8, 3, 3) * np.float32(0.2),
    "v": normal(8, 8, 1, 1, seed=1) * np.float32(0.4),
    "b": normal(8, seed=2),
    "m": normal(6, 6, seed=3),
    "n": np.array(3, np.int64),
    "yes": np.array(True),
}
BRANCHES = """
    y = If(c) <
        then_branch = p () => (float[n,8,6,6] t) {
            [first] t0 = Conv<pads = [1,1,1,1]>(x, w, b) t1 = Relu(t0) [second] t2 = Conv(t1, v) t = Sigmoid(t2) },
        else_branch = q () => (float[n,8,6,6] u) { [product] u = MatMul(x, m) }>
"""
LOOP = """
    y = Loop(n, yes, x) <
        body = d (int64 i, bool go, float[n,8,6,6] state) => (bool on, float[n,8,6,6] next) {
            on = Identity(go) [step] s = Conv<pads = [1,1,1,1]>(state, w) next = Tanh(s) }>
"""


def source(nodes: str) -> ModelProto:
    return parse(nodes, INPUTS, OUTPUTS, WEIGHTS)


def feeds() -> list[dict[str, Array]]:
    return [{"x": normal(2, 8, 6, 6, seed=10 + i), "c": np.array(i % 2 == 0)} for i in range(6)]


def graphs(graph: GraphProto) -> Iterator[GraphProto]:
    yield graph
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.HasField("g"):
                yield from graphs(attribute.g)


def kernels(path: Path) -> Counter[str]:
    """Operators of the graph that onnxruntime makes of a model, bodies included."""
    options = ort.SessionOptions()
    options.optimized_model_filepath = str(path.with_suffix(".optimized.onnx"))
    options.log_severity_level = 3
    ort.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    proto = onnx.load(options.optimized_model_filepath)
    return Counter(node.op_type for graph in graphs(proto.graph) for node in graph.node)


@pytest.mark.parametrize(
    ("nodes", "wanted"),
    [(BRANCHES, {"QLinearConv": 2, "MatMulIntegerToFloat": 1}), (LOOP, {"QLinearConv": 1})],
)
def test_layers_in_bodies_run_on_integers(nodes: str, wanted: dict[str, int], tmp_path: Path) -> None:
    proto = source(nodes)
    result = amct_onnx.quantize(proto, feeds(), formats=["qdq"])
    path = result.save(tmp_path / "m")["qdq"]
    found = kernels(path)
    assert {name: found[name] for name in wanted} == wanted
    assert found["Conv"] + found["FusedConv"] + found["MatMul"] == 0
    for fed in feeds()[:2]:
        want, got = run(proto, fed)[0], run(path, fed)[0]
        assert np.linalg.norm(got - want) < 0.05 * np.linalg.norm(want)


SHARED = """
    y = If(c) <
        then_branch = p () => (float[n,8,6,6] t) { [first] t = Conv(x, v) },
        else_branch = q () => (float[n,8,6,6] u) { [second] u0 = Neg(x) [third] u = Conv(u0, v) }>
"""


@pytest.mark.parametrize("nodes", [SHARED, f"[outside] s = Conv(x, v) {SHARED.replace('(x', '(s')}"])
def test_each_body_dequantizes_a_shared_weight_itself(nodes: str, tmp_path: Path) -> None:
    proto = source(nodes)
    path = amct_onnx.quantize(proto, feeds(), formats=["qdq"], weights="arq").save(tmp_path / "m")["qdq"]
    saved = onnx.load(path)
    onnx.checker.check_model(saved)
    count = sum(node.op_type == "Conv" for graph in graphs(saved.graph) for node in graph.node)
    # arq looks at the weight alone, so all layers have one scale and share the integers.
    assert [tensor.data_type for tensor in saved.graph.initializer if tensor.dims == [8, 8, 1, 1]] == [3]
    assert kernels(path)["QLinearConv"] == count
    for fed in feeds()[:2]:
        want, got = run(proto, fed)[0], run(path, fed)[0]
        assert np.linalg.norm(got - want) < 0.05 * np.linalg.norm(want)


def test_what_a_body_reads_from_outside_may_have_a_pair_there(tmp_path: Path) -> None:
    body = SHARED.replace("(x", "(s").replace("Neg(s)", "Identity(s)")
    proto = source(f"[outside] s0 = Conv(x, v) s = Relu(s0) {body}")
    onnx.save(proto, tmp_path / "m.onnx")
    result = amct_onnx.quantize(tmp_path / "m.onnx", feeds())
    assert not [note for note in result.report.notes if '"s"' in note or "different scale" in note]
    result.save(tmp_path / "a")
    again = amct_onnx.apply(tmp_path / "m.onnx", tmp_path / "a_record.txt", strict=True).save(tmp_path / "b")
    assert again["qdq"].read_bytes() == (tmp_path / "a_qdq_model.onnx").read_bytes()
    assert kernels(again["qdq"])["QLinearConv"] == 3


@pytest.mark.parametrize("clamp", ["Relu(s)", "Clip(s, zero, six)"])
def test_a_clamp_that_the_quantizer_enforces_goes(clamp: str, tmp_path: Path) -> None:
    # onnxruntime 1.21 opens no model with such a Relu between a layer and its quantizer inside a body.
    nodes = f"""
        y = If(c) <
            then_branch = p () => (float[n,8,6,6] t) {{ [first] s = Conv(x, v) t = {clamp} }},
            else_branch = q () => (float[n,8,6,6] u) {{ u = Sigmoid(x) }}>
    """
    limits = {"zero": np.array(0, np.float32), "six": np.array(6, np.float32)}
    proto = parse(nodes, INPUTS, OUTPUTS, {**WEIGHTS, **limits})
    path = amct_onnx.quantize(proto, feeds(), formats=["qdq"]).save(tmp_path / "m")["qdq"]
    branch = next(attribute.g for attribute in onnx.load(path).graph.node[0].attribute if attribute.name[:4] == "then")
    assert not {"Relu", "Clip"} & {node.op_type for node in branch.node}
    want, got = run(proto, feeds()[0])[0], run(path, feeds()[0])[0]
    assert got.min() == 0
    assert np.linalg.norm(got - want) < 0.05 * np.linalg.norm(want)


def test_apply_writes_the_same_bytes(tmp_path: Path) -> None:
    onnx.save(source(BRANCHES), tmp_path / "m.onnx")
    first = amct_onnx.quantize(tmp_path / "m.onnx", feeds()).save(tmp_path / "a")
    again = amct_onnx.apply(tmp_path / "m.onnx", tmp_path / "a_record.txt").save(tmp_path / "b")
    assert first["qdq"].read_bytes() == again["qdq"].read_bytes()


def test_the_scale_of_a_result_covers_what_the_body_makes() -> None:
    proto = source(BRANCHES)
    taken = [fed for fed in feeds() if fed["c"]]
    result = amct_onnx.quantize(proto, feeds(), formats=["qdq"], act="minmax")
    inner = parse(
        "t0 = Conv<pads = [1,1,1,1]>(x, w, b) t1 = Relu(t0) t2 = Conv(t1, v)", INPUTS, "float[n,8,6,6] t2", WEIGHTS
    )
    results = np.concatenate([run(inner, fed)[0].ravel() for fed in taken])
    entry = result.tensors.layers["t2"]
    assert entry.scale_d == pytest.approx((results.max() - results.min()) / 255, rel=1e-5)
    # t1 is what the second layer reads, which the record quantizes already.
    assert set(result.tensors.layers) == {"t2"}


def test_each_body_sees_what_it_reads_itself() -> None:
    given = [{**fed, "x": fed["x"] * np.float32(1 if fed["c"] else 10)} for fed in feeds()]
    nodes = SHARED.replace("Neg(x)", "Identity(x)").replace("(u0, v)", "(x, v)")
    record = amct_onnx.quantize(source(nodes), given, act="minmax").record
    for layer, flag in (("first", True), ("third", False)):
        values = np.concatenate([fed["x"].ravel() for fed in given if bool(fed["c"]) is flag])
        assert record.layers[layer].scale_d == pytest.approx((values.max() - values.min()) / 255, rel=1e-6)


def test_results_of_one_name_in_two_bodies_stay_float_and_are_named(tmp_path: Path) -> None:
    nodes = """
        y = If(c) <
            then_branch = p () => (float[n,8,6,6] t) { [b] s = Conv(x, v) t = Sigmoid(s) },
            else_branch = q () => (float[n,8,6,6] u) { [b] s = Conv(x, v) u = Tanh(s) }>
    """
    proto = source(nodes)
    result = amct_onnx.quantize(proto, feeds(), formats=["qdq", "fake_quant"])
    (note,) = (note for note in result.report.notes if "inside a body" in note)
    assert note.startswith("2 layers, like 'If_0/then_branch/b'")
    path = result.save(tmp_path / "m")["qdq"]
    for fed in feeds()[:2]:
        np.testing.assert_array_equal(run(path, fed)[0], run(proto, fed)[0])


def test_a_body_that_lists_one_tensor_twice_is_observed_once() -> None:
    # onnxruntime fills the first of the two results alone; looking at the other ended the process.
    proto = parse(
        """a, b = If(c) <
               then_branch = p () => (float[n,4] t, float[n,4] t) { [layer] t = MatMul(x, w) },
               else_branch = q () => (float[n,4] u, float[n,4] u) { u = Neg(x) }>
           y = Relu(a)""",
        "float[n,4] x, bool c",
        "float[n,4] y",
        {"w": normal(4, 4)},
    )
    fed = {"x": normal(2, 4, seed=1), "c": np.array(True)}
    result = amct_onnx.quantize(proto, [fed])
    assert list(result.record.layers) == ["layer"]
    want = run(proto, fed)[0]
    assert np.abs(run(result.model("qdq"), fed)[0] - want).max() < 0.05 * np.abs(want).max()
