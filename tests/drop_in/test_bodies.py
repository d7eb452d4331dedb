"""Layers inside If and Loop bodies: observed by the user's loop, compressed in the Ascend and fake-quant forms."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

import amct_onnx
from amct_onnx.analyse import body_statistics
from amct_onnx.analyse.algorithms.activation import ifmr
from amct_onnx.analyse.statistics import TensorStatistics
from amct_onnx.record import load_record
from amct_onnx.runtime import fetch, open_session
from amct_onnx.runtime.simulator import open_simulator
from tests.drop_in.test_drop_in import run_python
from tests.models import normal, parse

NET = """
    [a] s = Conv(x, w)
    [i] y = If(c) <
        then_branch = p () => (float[n,3,h,k] t1) { [b] t0 = Conv(s, v) [r] t1 = Relu(t0) },
        else_branch = q () => (float[n,3,h,k] u1) { u0 = Neg(x) [e] u1 = Conv(u0, v) }>
    [l] z = Loop(m, yes, y) <
        body = d (int64 j, bool go, float[n,3,h,k] acc) => (bool on, float[n,3,h,k] next) {
            on = Identity(go) [g] next = Conv(acc, w) }>
"""
WEIGHTS = {
    "w": normal(3, 3, 1, 1),
    "v": normal(3, 3, 1, 1, seed=1),
    "m": np.array(3, np.int64),
    "yes": np.array(True),
}

LOOP = """
    import numpy as np, onnxruntime as ort
    import amct_onnx as amct
    options = amct.AMCT_SO
    {setup}
    session = ort.InferenceSession("modified.onnx", options)
    for feed, choice in zip(np.load("feeds.npy"), {choices}):
        session.run(None, {{"x": feed, "c": np.array(choice)}})
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    np.save("feeds.npy", normal(4, 2, 3, 4, 4, seed=7))
    onnx.save(parse(NET, "float[n,3,4,4] x, bool c", "float[n,3,h,k] z", WEIGHTS), "model.onnx")
    amct_onnx.create_quant_config("config.json", "model.onnx", batch_num=4)
    amct_onnx.quantize_model("config.json", "model.onnx", "modified.onnx", "record.txt")
    return tmp_path


@pytest.mark.parametrize("setup", ["", "options.execution_mode = ort.ExecutionMode.ORT_PARALLEL"])
def test_layers_in_bodies_are_observed_and_compressed(folder, setup):
    run_python(LOOP.format(setup=setup, choices=[True, False, True, False]))
    amct_onnx.save_model("modified.onnx", "record.txt", "net")
    layers = load_record("record.txt").record.layers
    assert list(layers) == ["a", "b", "e", "g"]
    # What the layer in the then branch reads, by the float model run in numpy.
    seen = TensorStatistics()
    for feed in np.load("feeds.npy")[[0, 2]]:
        seen.update(np.einsum("oi,nihw->nohw", WEIGHTS["w"][:, :, 0, 0], feed))
    scale, offset = ifmr(seen.distribution(), bits=8, symmetric=False)
    assert layers["b"].scale_d == pytest.approx(scale, rel=1e-3)
    assert abs(layers["b"].offset_d - offset) <= 1
    for choice in (True, False):
        feed = {"x": np.load("feeds.npy")[0 if choice else 1], "c": np.array(choice)}
        sessions = [open_session(Path("model.onnx")), open_session(Path("net_fake_quant_model.onnx"))]
        exact, faked = (fetch(session, ["z"], feed)[0] for session in sessions)
        simulated = fetch(open_simulator("net_deploy_model.onnx"), ["z"], feed)[0]
        np.testing.assert_allclose(faked, simulated, rtol=1e-5, atol=1e-6)
        assert np.linalg.norm(faked - exact) < 0.05 * np.linalg.norm(exact)


def test_a_branch_never_taken_stays_float_and_is_named(folder):
    run_python(LOOP.format(setup="", choices=[True] * 4))
    amct_onnx.save_model("modified.onnx", "record.txt", "net")
    log = Path("amct_log/amct_onnx.log").read_text()
    assert "layer 'e' stays float: no data reached it (4 of 4 runs done)" in log
    branches = next(node for node in onnx.load("net_deploy_model.onnx").graph.node if node.op_type == "If").attribute
    operators = {branch.name: [node.op_type for node in branch.g.node] for branch in branches}
    assert operators["else_branch"] == ["Neg", "Conv"]
    assert operators["then_branch"] == ["AscendQuant", "Conv", "AscendDequant", "Relu"]


def some_feeds(choices=(True, False, True, False)):
    return [{"x": feed, "c": np.array(choice)} for feed, choice in zip(np.load("feeds.npy"), choices, strict=True)]


def test_one_call_sees_what_the_loop_sees(folder):
    run_python(LOOP.format(setup="", choices=[True, False, True, False]))
    amct_onnx.save_model("modified.onnx", "record.txt", "net")
    result = amct_onnx.quantize("model.onnx", some_feeds(), config="config.json")
    assert result.record.layers == load_record("record.txt").record.layers
    assert result.report.refusals == ()
    saved = onnx.load("net_deploy_model.onnx")
    assert result.model("ascend").graph.SerializeToString() == saved.graph.SerializeToString()


def test_empty_batches_take_no_place_inside_either(folder):
    empty = {"x": np.zeros((0, 3, 4, 4), np.float32), "c": np.array(True)}
    with_empty = [empty, empty, *some_feeds()]
    assert amct_onnx.quantize("model.onnx", with_empty).record == amct_onnx.quantize("model.onnx", some_feeds()).record


def test_statistics_hold_what_was_seen_inside(folder):
    once = amct_onnx.quantize("model.onnx", some_feeds())
    amct_onnx.save_calibration(once.calibration, "seen.npz")
    assert amct_onnx.quantize("model.onnx", amct_onnx.load_calibration("seen.npz")).record == once.record


def test_a_model_with_layers_inside_bodies_alone(folder):
    nodes = NET.replace("[a] s = Conv(x, w)", "s = Neg(x)")
    source = parse(nodes, "float[n,3,4,4] x, bool c", "float[n,3,h,k] z", WEIGHTS)
    result = amct_onnx.quantize(source, some_feeds(), formats=["fake_quant"])
    assert set(result.record.layers) == {"b", "e", "g"}
    (trial,) = result.report.trials
    assert trial.snr_db > 25


UNSEEN = {
    "a branch never taken": (lambda: some_feeds([True] * 4), {"e"}, "never came to it"),
    "a generator": (lambda: iter(some_feeds()), {"b", "e", "g"}, "give a list"),
}


@pytest.mark.parametrize("case", UNSEEN)
def test_what_nobody_saw_stays_float_with_the_reason(folder, case):
    data, names, words = UNSEEN[case]
    result = amct_onnx.quantize("model.onnx", data())
    reasons = {refusal.node: f"{refusal.reason}; {refusal.remedy}" for refusal in result.report.refusals}
    assert set(reasons) == names
    assert all(words in reason for reason in reasons.values())


def test_without_the_extra_the_reason_is_what_installs_it(folder, monkeypatch):
    monkeypatch.setattr(body_statistics, "can_watch", lambda: False)
    result = amct_onnx.quantize("model.onnx", some_feeds())
    remedies = {refusal.node: refusal.remedy for refusal in result.report.refusals}
    assert remedies == dict.fromkeys(("b", "e", "g"), "pip install onnxruntime-extensions")
    before = amct_onnx.quantize("model.onnx", result.calibration)
    assert {refusal.node for refusal in before.report.refusals} == {"b", "e", "g"}


def test_a_record_of_the_loop_is_applied_to_the_source(folder):
    run_python(LOOP.format(setup="", choices=[True, False] * 2))
    amct_onnx.save_model("modified.onnx", "record.txt", "net")
    again = amct_onnx.apply("model.onnx", "record.txt", formats=["ascend", "fake_quant", "qdq"])
    saved = onnx.load("net_deploy_model.onnx")
    assert again.model("ascend").graph.SerializeToString() == saved.graph.SerializeToString()
    # A record of the loop has no tensors file, which would hold the scales that kernels in bodies write with.
    assert any("no scale of its result inside a body" in note for note in again.report.notes)
    feed = {"x": normal(2, 3, 4, 4, seed=9), "c": np.array(True)}
    exact = fetch(open_session(Path("model.onnx")), ["z"], feed)[0]
    assert np.abs(fetch(open_session(again.model("qdq")), ["z"], feed)[0] - exact).max() < 0.1 * np.abs(exact).max()


WITH_CONSTANTS = """
    y = If(c) <
        then_branch = p () => (float[n,3,4,4] t) {
            k = Constant<value = float[1] {2.0}>()
            v = Constant<value = float[3,3,1,1] {1, 0, 0, 0, 1, 0, 0, 0, 1}>()
            o = Constant<value = float[1] {3.0}>()
            [b] t0 = Conv(x, v) t = Mul(t0, k) },
        else_branch = q () => (float[n,3,4,4] u) { u = Neg(x) }>
"""


def test_weights_that_stand_in_bodies_do_not_stay_beside_the_integers(folder):
    onnx.save(parse(WITH_CONSTANTS, "float[n,3,4,4] x, bool c", "float[n,3,4,4] y"), "model.onnx")
    amct_onnx.create_quant_config("config.json", "model.onnx", batch_num=4)
    amct_onnx.quantize_model("config.json", "model.onnx", "modified.onnx", "record.txt")
    run_python(LOOP.format(setup="", choices=[True] * 4))
    amct_onnx.save_model("modified.onnx", "record.txt", "net")
    for form in ("deploy", "fake_quant"):
        (node,) = onnx.load(f"net_{form}_model.onnx").graph.node
        body = next(attribute.g for attribute in node.attribute if attribute.name == "then_branch")
        assert "b" in {inner.name for inner in body.node}
        # k is read, and nothing read o in the source either, which is the source's own affair; v is gone.
        assert {inner.output[0] for inner in body.node if inner.op_type == "Constant"} == {"k", "o"}
    feed = {"x": normal(2, 3, 4, 4, seed=9), "c": np.array(True)}
    faked = fetch(open_session(Path("net_fake_quant_model.onnx")), ["y"], feed)[0]
    assert np.linalg.norm(faked - 2 * feed["x"]) < 0.02 * np.linalg.norm(faked)
