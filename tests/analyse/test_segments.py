"""A model run in parts shows its watchers what the whole model computes, as onnxruntime alone says."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import ModelProto, TensorProto, helper

from amct_onnx.analyse import segments as cutting
from amct_onnx.analyse.segments import segments
from amct_onnx.analyse.walk import walk
from amct_onnx.errors import DataError, ModelError
from tests.models import Array, normal, parse

W = {"w": normal(4, 4, 3, 3, seed=1) * np.float32(0.2), "v": normal(4, 4, 1, 1, seed=2)}
PADDED = "<pads=[1,1,1,1]>"
IMAGE = "float[N,4,H,8] x"

CASES: dict[str, tuple[str, str, list[str]]] = {
    "a chain": (
        f"a = Conv {PADDED}(x, w) b = Relu(a) c = Conv {PADDED}(b, w) d = Sigmoid(c) y = Conv(d, v)",
        IMAGE,
        ["x", "a", "b", "c", "d", "y"],
    ),
    "branches that meet": (
        f"a = Conv {PADDED}(x, w) b = Relu(a) c = Conv {PADDED}(b, w) d = Add(b, c) e = Conv(d, v) y = Add(e, a)",
        IMAGE,
        ["a", "b", "c", "d", "e"],
    ),
    "a tensor alive that nobody watches": (
        f"s = Sigmoid(x) a = Conv {PADDED}(s, w) b = Mul(a, s) c = Conv {PADDED}(b, w) d = Mul(c, s) y = Conv(d, v)",
        IMAGE,
        ["a", "b", "c", "d"],
    ),
    "shapes computed early and used late": (
        f"n = Shape(x) a = Conv {PADDED}(x, w) b = Relu(a) c = Conv {PADDED}(b, w) d = Reshape(c, n) y = Conv(d, v)",
        IMAGE,
        ["a", "b", "c", "d"],
    ),
    "a constant node": (
        f"k = Constant <value = float {{2.0}}>() a = Mul(x, k) b = Conv {PADDED}(a, w) c = Relu(b) y = Mul(c, k)",
        IMAGE,
        ["a", "b", "c"],
    ),
}


@pytest.fixture(autouse=True)
def many_segments(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cutting, "SEGMENT_BYTES", 1)


def shown(proto: ModelProto, names: list[str], feeds: list[dict[str, Array]], base: Path | None = None):
    """What each watcher saw, feed by feed."""
    seen: dict[str, list[Array]] = {name: [] for name in names}
    watchers = {name: [lambda array, name=name: seen[name].append(array.copy())] for name in names}
    walk(proto, base, watchers, feeds)
    return seen


def computed(proto: ModelProto, names: list[str], feeds: list[dict[str, Array]]):
    """The same by onnxruntime, all at once."""
    whole = ModelProto()
    whole.CopyFrom(proto)
    have = {info.name for info in (*proto.graph.output, *proto.graph.input)}
    whole.graph.output.extend(onnx.ValueInfoProto(name=name) for name in names if name not in have)
    session = ort.InferenceSession(whole.SerializeToString(), providers=["CPUExecutionProvider"])
    made = [name for name in names if name not in feeds[0]]
    runs = [dict(zip(made, session.run(made, feed), strict=True)) | feed for feed in feeds]
    return {name: [run[name] for run in runs] for name in names}


def check(proto: ModelProto, names: list[str], feeds: list[dict[str, Array]], base: Path | None = None) -> None:
    seen, wanted = shown(proto, names, feeds, base), computed(proto, names, feeds)
    for name in names:
        for got, want in zip(seen[name], wanted[name], strict=True):
            np.testing.assert_array_equal(got, want, err_msg=name)


def parts_of(proto: ModelProto, names: list[str], feed: dict[str, Array]) -> int:
    return len(segments(proto, None, names, {name: array.shape for name, array in feed.items()}))


@pytest.mark.parametrize("opset", [13, 17, 21])
@pytest.mark.parametrize("case", CASES)
def test_parts_compute_what_the_whole_computes(case: str, opset: int) -> None:
    nodes, inputs, watched = CASES[case]
    proto = parse(nodes, inputs, "float y", W, opset=opset)
    feeds = [{"x": normal(batch, 4, height, 8, seed=batch)} for batch, height in ((2, 6), (1, 9), (3, 5))]
    if case != "shapes computed early and used late":
        assert parts_of(proto, watched, feeds[0]) > 1
    check(proto, watched, feeds)


def test_bodies_read_tensors_of_earlier_parts() -> None:
    yes = "yes () => (float t) { t = Mul(a, a) }"
    no = "no () => (float f) { f = Add(a, a) }"
    nodes = (
        "a = Relu(x) b = Conv(a, v) c = Relu(b) m = ReduceMax <keepdims=0>(c) zero = Constant <value = float {0.5}>() "
        f"q = Greater(m, zero) d = If (q) <then_branch = {yes}, else_branch = {no}> e = Add(d, c) y = Relu(e)"
    )
    proto = parse(nodes, IMAGE, "float y", {"v": W["v"]})
    feed = {"x": normal(2, 4, 3, 8)}
    assert parts_of(proto, ["a", "b", "c", "e"], feed) > 1
    check(proto, ["a", "b", "c", "e"], [feed])


@pytest.mark.parametrize("version", [3, 8])
def test_weights_that_are_inputs_keep_their_values(version: int) -> None:
    nodes, inputs, watched = CASES["a chain"]
    proto = parse(nodes, inputs, "float y", W, opset=7 if version == 3 else 17)
    proto.ir_version = version
    for name, array in W.items():
        proto.graph.input.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, array.shape))
    check(proto, watched, [{"x": normal(2, 4, 6, 8)}])


def test_strings_and_sequences_are_not_carried_between_parts() -> None:
    nodes = (
        "a = Relu(x) b = Sigmoid(a) l = SequenceConstruct(a, b) c = Relu(b) d = Sigmoid(c) "
        "e = ConcatFromSequence <axis = 1>(l) y = Relu(e)"
    )
    proto = parse(nodes, "float[2,3] x", "float y")
    check(proto, ["a", "b", "c", "d", "e"], [{"x": normal(2, 3)}])


def test_a_model_that_takes_strings_stays_whole() -> None:
    proto = parse("a = Relu(x) b = Relu(a) t = Identity(s)", "float[2] x, string[1] s", "float[2] b, string[1] t")
    feed = {"x": normal(2), "s": np.array(["word"], object)}
    assert parts_of(proto, ["a", "b"], feed) == 1
    np.testing.assert_array_equal(shown(proto, ["a"], [feed])["a"][0], np.maximum(feed["x"], 0))


def test_external_weights_are_found_from_every_part(tmp_path: Path) -> None:
    nodes, inputs, watched = CASES["branches that meet"]
    whole = parse(nodes, inputs, "float y", W)
    copy = ModelProto()
    copy.CopyFrom(whole)
    onnx.save(copy, tmp_path / "m.onnx", save_as_external_data=True, location="m.data", size_threshold=0)
    proto = onnx.load(tmp_path / "m.onnx", load_external_data=False)
    feeds = [{"x": normal(2, 4, 6, 8)}]
    seen, wanted = shown(proto, watched, feeds, tmp_path), computed(whole, watched, feeds)
    for name in watched:
        np.testing.assert_array_equal(seen[name][0], wanted[name][0])


def test_lent_weights_live_as_long_as_the_session() -> None:
    """Weights over the size that is handed over beside the model; what is freed meanwhile is written over."""
    weights = {"w": normal(256, 256, seed=1), "u": normal(256, 256, seed=2)}
    proto = parse("a = MatMul(x, w) b = Relu(a) y = MatMul(b, u)", "float[N,256] x", "float y", weights)
    watched = ["a", "b", "y"]
    seen: dict[str, list[Array]] = {name: [] for name in watched}
    rubbish = []

    def keep(array: Array, name: str) -> None:
        seen[name].append(array.copy())
        rubbish.extend(np.full((256, 256), np.nan, np.float32) for _ in range(20))

    feeds = [{"x": normal(3, 256, seed=seed)} for seed in range(4)]
    walk(proto, None, {name: [lambda array, name=name: keep(array, name)] for name in watched}, feeds)
    wanted = computed(proto, watched, feeds)
    for name in watched:
        for got, want in zip(seen[name], wanted[name], strict=True):
            np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)


def test_a_feed_that_fails_in_a_later_part_is_named() -> None:
    nodes = "a = Relu(x) b = Sigmoid(a) c = Relu(b) y = Add(c, z)"
    proto = parse(nodes, "float[N] x, float[M] z", "float y")
    feeds = [{"x": normal(3), "z": normal(3)}, {"x": normal(3), "z": normal(2)}]
    assert parts_of(proto, ["a", "b", "c"], feeds[0]) > 1
    with pytest.raises(DataError, match="feed 1: the model fails"):
        shown(proto, ["a", "b", "c", "y"], feeds)


def test_the_result_of_a_gemm_between_transpositions_can_be_watched(monkeypatch: pytest.MonkeyPatch) -> None:
    """onnxruntime would fuse the three, and then miss the tensor that it was asked for."""
    nodes = "a = Transpose(x) t = Gemm(a, w) u = Transpose(t) y = Relu(u)"
    proto = parse(nodes, "float[3,6] x", "float y", {"w": normal(3, 5)})
    x = normal(3, 6, seed=4)
    for limit in (1, 2**30):
        monkeypatch.setattr(cutting, "SEGMENT_BYTES", limit)
        (got,) = shown(proto, ["t"], [{"x": x}])["t"]
        np.testing.assert_allclose(got, x.T @ normal(3, 5), rtol=1e-5, atol=1e-6)


def test_what_lies_between_a_product_and_a_normalization_can_be_watched() -> None:
    """The same of a MatMul, Reshape and BatchNormalization."""
    nodes = "m = MatMul(x, w) t = Reshape(m, s) u = BatchNormalization(t, g, g, g, g) y = Relu(u)"
    weights = {"w": normal(6, 4), "s": np.array([3, 4]), "g": np.ones(4, np.float32)}
    proto = parse(nodes, "float[3,6] x", "float y", weights)
    x = normal(3, 6, seed=4)
    (got,) = shown(proto, ["t", "u"], [{"x": x}])["t"]
    np.testing.assert_allclose(got, x @ weights["w"], rtol=1e-5, atol=1e-6)


def test_small_models_stay_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    nodes, inputs, watched = CASES["a chain"]
    assert parts_of(parse(nodes, inputs, "float y", W), watched, {"x": normal(2, 4, 6, 8)}) == 1


def test_a_model_that_onnxruntime_refuses_is_blamed() -> None:
    proto = parse("a = Relu(x) y = Nonsense(a)", "float[2] x", "float y")
    with pytest.raises(ModelError, match="onnxruntime cannot load the model"):
        shown(proto, ["a"], [{"x": normal(2)}])
