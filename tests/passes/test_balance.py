"""Balancing changes no result in float, folds where it can, and agrees with the plan."""

from __future__ import annotations

import re

import numpy as np
import pytest
from onnx import ModelProto

import amct_onnx
from amct_onnx.errors import DataError, RecordError, UsageError
from amct_onnx.graph import build
from amct_onnx.passes.balance import BalanceLayers
from amct_onnx.rewrite import OutputForm, prepare
from amct_onnx.runtime import fetch, open_session
from tests.models import Array, normal, parse

IMAGE = "float[1,4,6,6] x"
FACTORS = np.array([0.25, 1.0, 4.0, 3.0], np.float32)
W = {
    "a": normal(4, 4, 3, 3),
    "p": normal(4),
    "w": normal(5, 4, 1, 1, seed=1),
    "g": normal(6, 2, 1, 1, seed=2),
    "t": normal(4, 3, 2, 2, seed=3),
    "m": normal(4, 3, seed=4),
    "n": normal(4, 4, seed=5),
    "c": normal(4, 1, 1, seed=6),
    "one": np.ones(4, np.float32),
    "columns": normal(6),
    "image": normal(1, 6, 6),
    "half": np.array(0.5, np.float32),
    "axes": np.array([2, 3]),
}

# name: graph, the layer to balance, operators that are left, names of tensors that end up divided
CASES = {
    "folded into a convolution": ("r = Conv(x, a, p) [L] y = Conv(r, w)", ["Conv", "Conv"], {"r"}),
    "through a Relu and a pool": (
        "r = Conv(x, a) s = Relu(r) q = MaxPool<kernel_shape = [2,2]>(s) [L] y = Conv(q, w)",
        ["Conv", "Relu", "MaxPool", "Conv"],
        {"r", "s", "q"},
    ),
    "grouped": ("r = Conv(x, a) [L] y = Conv<group = 2>(r, g)", ["Conv", "Conv"], {"r"}),
    "into a transposed convolution": ("[L] r = ConvTranspose(x, t) y = Neg(r)", None, {"L.mul.output0"}),
    "into constants": (
        "r = Abs(x) s = Mul(r, c) q = Add(c, s) [L] y = Conv(q, w)",
        ["Abs", "Mul", "Add", "Conv"],
        {"s", "q"},
    ),
    "into a normalization": (
        "r = BatchNormalization(x, p, p, one, one) [L] y = Conv(r, w)",
        ["BatchNormalization", "Conv"],
        {"r"},
    ),
    "not through a Clip": (
        "r = Conv(x, a) s = Clip(r) [L] y = Conv(s, w)",
        ["Conv", "Clip", "Mul", "Conv"],
        {"L.mul.output0"},
    ),
    "not into a scalar": (
        "r = Abs(x) s = Mul(r, half) [L] y = Conv(s, w)",
        ["Abs", "Mul", "Mul", "Conv"],
        {"L.mul.output0"},
    ),
    "not where others read": (
        "r = Conv(x, a) s = Neg(r) [L] q = Conv(r, w) z = ReduceMean(s) y = Add(q, z)",
        None,
        {"L.mul.output0"},
    ),
    "not into a constant without channels": (
        "r = Abs(x) s = Mul(r, columns) [L] y = Conv(s, w)",
        ["Abs", "Mul", "Mul", "Conv"],
        {"L.mul.output0"},
    ),
    "into a constant as large as an image": (
        "r = Abs(x) s = Mul(r, image) [L] y = Conv(s, w)",
        ["Abs", "Mul", "Conv"],
        {"s"},
    ),
    "not at a graph input": ("[L] y = Conv(x, w)", ["Mul", "Conv"], {"L.mul.output0"}),
    "matrix product": (
        "r = Transpose<perm = [0,2,3,1]>(x) s = MatMul(r, n) q = Add(s, p) [L] y = MatMul(q, m)",
        ["Transpose", "MatMul", "Add", "MatMul"],
        {"q"},
    ),
    "layer normalization": (
        "r = Transpose<perm = [0,2,3,1]>(x) q = LayerNormalization(r, p, p) [L] y = MatMul(q, m)",
        ["Transpose", "LayerNormalization", "MatMul"],
        {"q"},
    ),
    "channels do not survive a Flatten": (
        "k = ReduceMean<axes = [2,3], keepdims = 0>(x) [L] y = Gemm(k, m)",
        ["ReduceMean", "Mul", "Gemm"],
        {"L.mul.output0"},
    ),
}


def run(proto, feed: Array) -> Array:
    return fetch(open_session(proto, optimize=False), ["y"], {"x": feed})[0]


@pytest.mark.parametrize("case", CASES)
def test_float_results_stay_and_division_goes_where_it_can(case: str) -> None:
    nodes, operators, divided = CASES[case]
    source = parse(nodes, IMAGE, "float y", W, opset=17)
    prepared = prepare(source, None, do_fusion=False).balanced({"L": FACTORS})
    balanced = build(prepared.model).to_proto()
    if operators is not None:
        assert [node.op_type for node in balanced.graph.node] == operators
    assert set(prepared.divided) == divided
    feed = normal(1, 4, 6, 6, seed=9)
    np.testing.assert_allclose(run(balanced, feed), run(source, feed), rtol=2e-5, atol=2e-5)
    for name, change in prepared.divided.items():
        real = fetch(open_session(balanced_with(balanced, name)), [name], {"x": feed})[0]
        session = open_session(balanced_with(source, change.source))
        there = feed if change.source == "x" else fetch(session, [change.source], {"x": feed})[0]
        np.testing.assert_allclose(change.of(there), real, rtol=1e-5, atol=1e-6)


def balanced_with(proto, name: str):
    """`proto` with one more output."""
    watched = ModelProto()
    watched.CopyFrom(proto)
    if name not in {info.name for info in proto.graph.output}:
        watched.graph.output.add(name=name)
    return watched


def test_layers_that_read_one_tensor_share_the_product() -> None:
    source = parse("[L] r = Conv(x, w) [M] s = Conv(x, w) y = Add(r, s)", IMAGE, "float y", W)
    prepared = prepare(source, None, do_fusion=False).balanced({"L": FACTORS, "M": FACTORS})
    assert [node.op for node in prepared.model.graph.nodes] == ["Mul", "Conv", "Conv", "Add"]
    shared = prepare(source, None, do_fusion=False).balanced({"L": FACTORS})
    assert [node.op for node in shared.model.graph.nodes] == ["Mul", "Conv", "Conv", "Add"]
    feed = normal(1, 4, 6, 6, seed=9)
    np.testing.assert_allclose(run(build(shared.model).to_proto(), feed), run(source, feed), rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("width", [4, 6])
def test_a_convolution_and_a_product_of_one_tensor_balance_other_channels(width: int) -> None:
    """Axis 1 against the last one, even where both have as many channels."""
    weights = {"w": W["w"], "m": normal(width, 3)}
    nodes = "[C] a = Conv(x, w) [P] b = MatMul(x, m) u = ReduceMax(a) v = ReduceMax(b) y = Add(u, v)"
    source = parse(nodes, f"float[1,4,6,{width}] x", "float y", weights)
    feed = normal(1, 4, 6, width, seed=9)
    other = np.linspace(0.5, 2, width, dtype=np.float32) if width != 4 else FACTORS
    balanced = build(prepare(source, None).balanced({"C": FACTORS, "P": other}).model).to_proto()
    np.testing.assert_allclose(run(balanced, feed), run(source, feed), rtol=2e-5, atol=2e-5)
    made = amct_onnx.quantize(source, [feed], dmq=0.5)
    for name, axis, weight_axis in (("C", 1, 1), ("P", -1, 0)):
        seen, of = (
            np.abs(array).max(axis=tuple(i for i in range(array.ndim) if i != kept % array.ndim))
            for array, kept in ((feed, axis), (weights["w" if name == "C" else "m"], weight_axis))
        )
        wanted = np.sqrt(seen / of)
        np.testing.assert_allclose(made.record.layers[name].tensor_balance_factor, wanted, rtol=1e-5)
    assert all(trial.snr_db > 25 for trial in made.report.trials)


@pytest.mark.parametrize("factors", [np.ones(3), np.array([1, 1, np.nan, 1]), np.array([1, 0, 1, 1])])
def test_factors_that_do_not_fit_change_nothing(factors: Array) -> None:
    prepared = prepare(parse("[L] y = Conv(x, w)", IMAGE, "float y", W), None)
    assert BalanceLayers({"L": factors.astype(np.float32)}).run(prepared.model).changed == ()
    assert [node.op for node in prepared.model.graph.nodes] == ["Conv"]


def spread_feeds() -> list[Array]:
    rng = np.random.default_rng(0)
    spread = np.array([0.02, 1, 40, 0.5], np.float32).reshape(1, 4, 1, 1)
    return [(rng.standard_normal((1, 4, 6, 6)) * spread).astype(np.float32) for _ in range(4)]


@pytest.mark.parametrize("nodes", ["[L] y = Conv(x, w)", "r = Relu(x) q = Conv(r, a) s = Relu(q) [L] y = Conv(s, w)"])
def test_balancing_lets_small_channels_live(nodes: str) -> None:
    """Weights that undo the spread of the channels: without balancing eight bits lose the small ones."""
    weights = dict(W)
    weights["w"] = (W["w"] / np.array([0.02, 1, 40, 0.5]).reshape(1, 4, 1, 1)).astype(np.float32)
    weights["a"] = (np.eye(4).reshape(4, 4, 1, 1) + 0.01).astype(np.float32)
    source = parse(nodes, "float[n,4,6,6] x", "float y", weights)
    plain, balanced = (amct_onnx.quantize(source, spread_feeds(), dmq=dmq) for dmq in (None, 0.5))
    snr = [{trial.form: trial.snr_db for trial in result.report.trials} for result in (plain, balanced)]
    assert snr[1]["fake_quant"] > snr[0]["fake_quant"] + 6
    assert snr[1]["qdq"] > snr[0]["qdq"] + 3
    again = amct_onnx.apply(source, balanced.record, tensors=balanced.tensors)
    for form in OutputForm:
        assert again.models[form].to_proto() == balanced.models[form].to_proto()


def test_a_layer_that_stays_float_after_all_is_not_balanced() -> None:
    """The plan has no entry that could say so, and the tensor between would have a scale of divided values."""
    weights = W | {"bad": np.full(5, np.nan, np.float32)}
    nodes = "[A] r = Conv(x, a, p) s = Relu(r) [L] z = Conv(s, w, bad) [B] y = Conv(s, w)"
    source = parse(nodes, "float[n,4,6,6] x", "float y, float[n,5,4,4] z", weights)
    made = amct_onnx.quantize(source, spread_feeds(), dmq=0.5, trial=False)
    assert list(made.record.layers) == ["A", "B"]
    again = amct_onnx.apply(source, made.record, tensors=made.tensors)
    for form in OutputForm:
        assert again.models[form].to_proto() == made.models[form].to_proto()
    assert "L.mul" not in {node.name for node in made.model("ascend").graph.node}


def test_a_record_without_our_header_may_balance_a_folded_layer(tmp_path) -> None:
    """scale_w in a record is that of the weights as they were, so folding into the layer before keeps its integers."""
    nodes = "[A] r = Conv(x, a, p) [L] y = Conv(r, w)"
    source = parse(nodes, IMAGE, "float y", W)
    factors = " ".join(f"tensor_balance_factor: {value}" for value in FACTORS)
    one = "offset_d: 0 scale_w: 0.02 offset_w: 0 scale_d: 0.03"
    two = f"offset_d: 0 scale_w: 0.06 offset_w: 0 scale_d: 0.5 {factors}"
    path = tmp_path / "foreign.txt"
    path.write_text(f'record {{ key: "A" value {{ {one} }} }} record {{ key: "L" value {{ {two} }} }}')
    result = amct_onnx.apply(source, path, formats=["ascend", "fake_quant"])
    deploy = result.models[OutputForm.ASCEND].to_proto()
    arrays = {tensor.name: amct_onnx_array(tensor) for tensor in deploy.graph.initializer}
    np.testing.assert_array_equal(arrays["a"], np.clip(np.rint(W["a"] / np.float32(0.02)), -128, 127))
    feed = normal(1, 4, 6, 6, seed=9)
    exact, got = run(source, feed), run(result.models[OutputForm.FAKE_QUANT].to_proto(), feed)
    assert np.abs(got - exact).max() < 0.1 * np.abs(exact).max()


def amct_onnx_array(tensor) -> Array:
    from onnx import numpy_helper

    return numpy_helper.to_array(tensor)


def test_what_cannot_be_balanced_is_said() -> None:
    source = parse("[L] y = Conv(x, w)", IMAGE, "float y", W)
    with pytest.raises(DataError, match="walks over the data twice"):
        amct_onnx.quantize(source, iter(spread_feeds()), dmq=0.5)
    with pytest.raises(DataError, match="statistics do not hold"):
        amct_onnx.quantize(source, amct_onnx.quantize(source, spread_feeds()).calibration, dmq=0.5)
    with pytest.raises(UsageError, match=r"from 0.2 to 0.8"):
        amct_onnx.quantize(source, spread_feeds(), dmq=0.9)
    with pytest.raises(RecordError, match="has length 1; this Conv has 4 input channels"):
        amct_onnx.apply(source, wrong_record())


def wrong_record():
    from amct_onnx.record import LayerRecord, Record

    return Record({"L": LayerRecord(scale_d=1, offset_d=0, scale_w=(1,), offset_w=(0,), tensor_balance_factor=(1,))})


def test_layers_that_cannot_be_balanced_are_named() -> None:
    source = parse(
        """[out] s = MatMul(x, w)
           y = If(c) <then_branch = p () => (float[n,3] a) { a = MatMul(s, v) },
                      else_branch = q () => (float[n,3] b) { b = MatMul(s, u) }>
           [rec] z, = RNN<hidden_size = 3>(t, W, R)""",
        "float[n,4] x, bool c, float[2,n,4] t",
        "float[n,3] y, float[2,1,n,3] z",
        {"w": normal(4, 4), "v": normal(4, 3), "u": normal(4, 3, seed=1), "W": normal(1, 3, 4), "R": normal(1, 3, 3)},
    )
    feeds = [{"x": normal(2, 4), "c": np.array(flag), "t": normal(2, 2, 4)} for flag in (True, False)]
    notes = [note for note in amct_onnx.quantize(source, feeds, dmq=0.5, trial=False).report.notes if "DMQ" in note]
    inside, recurrent = notes
    assert re.fullmatch(r"layers in control-flow bodies are not balanced \(DMQ\): '.+' and 1 more", inside)
    assert recurrent == "recurrent layers are not balanced (DMQ): 'rec'"
    assert not any("DMQ" in note for note in amct_onnx.quantize(source, feeds, trial=False).report.notes)
