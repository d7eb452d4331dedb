"""A model run on from what was kept computes what it does from its inputs, as onnxruntime alone says."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import ModelProto

from amct_onnx.analyse import resume
from amct_onnx.analyse.resume import Resumed, alive_before, feed_key, part_between
from amct_onnx.graph import build, import_model
from tests.models import Array, normal, parse

WEIGHTS = {"v": normal(4, 4, seed=1), "w": normal(4, 4, seed=2)}
NODES = "n = Shape(x) a = MatMul(x, v) b = Relu(a) c = MatMul(b, w) d = Add(c, a) e = Reshape(d, n) y = Mul(e, x)"


def model() -> ModelProto:
    return parse(NODES, "float[n,4] x", "float[n,4] y", WEIGHTS)


def computed(proto: ModelProto, name: str, feed: dict[str, Array]) -> Array:
    whole = ModelProto()
    whole.CopyFrom(proto)
    if name != "y":
        whole.graph.output.append(onnx.ValueInfoProto(name=name))
    session = ort.InferenceSession(whole.SerializeToString(), providers=["CPUExecutionProvider"])
    return np.asarray(session.run([name], feed)[0])


def test_what_is_alive_before_a_node() -> None:
    assert alive_before(model(), {"a"}) == {"n"}
    assert alive_before(model(), {"c", "e"}) == {"n", "a", "b"}
    assert alive_before(model(), {"y"}) == {"e"}
    assert alive_before(model(), set()) == set()


def test_a_part_holds_what_it_needs_and_no_more() -> None:
    part = part_between(model(), {("a", "<f4", 2), ("b", "<f4", 2), ("n", "<i8", 1)}, ["d"])
    assert [node.op_type for node in part.nodes] == ["MatMul", "Add"]
    assert [info.name for info in part.inputs] == ["a", "b"]


@pytest.mark.parametrize("room", [2**20, 200, 0])
@pytest.mark.parametrize("is_built", [False, True])
def test_walks_that_go_on_see_what_others_see(monkeypatch: pytest.MonkeyPatch, room: int, is_built: bool) -> None:
    monkeypatch.setattr(resume, "KEPT_BYTES", room)
    proto = model()
    feeds = [{"x": normal(count, 4, seed=count)} for count in (2, 3, 5)]
    runs = Resumed()
    walks = ({"b"}, {"a", "b", "n"}), ({"d", "b"}, {"d", "n"}), ({"x", "e"}, None), ({"y"}, None)
    for wanted, keep in walks:
        runs.begin(build(import_model(proto, None)) if is_built else proto, None, wanted, keep)
        for feed in feeds:
            shown = runs.run(feed, feed_key(feed))
            for name in wanted - {"x"}:
                np.testing.assert_allclose(shown[name], computed(proto, name, feed), rtol=1e-5)
            assert "x" not in wanted or shown["x"] is feed["x"]
        assert sum(array.nbytes for kept in runs.kept.values() for array in kept.values()) <= room
    assert len(runs.kept) == {2**20: 3, 200: 2, 0: 0}[room]


def test_what_was_kept_is_not_computed_again() -> None:
    runs, feed = Resumed(), {"x": normal(2, 4)}
    runs.begin(model(), None, {"b"}, {"a", "b", "n"})
    runs.run(feed, feed_key(feed))
    # Were the first product run again, its result would be another one now.
    changed = parse(NODES, "float[n,4] x", "float[n,4] y", WEIGHTS | {"v": np.zeros((4, 4), np.float32)})
    runs.begin(changed, None, {"y"})
    np.testing.assert_allclose(runs.run(feed, feed_key(feed))["y"], computed(model(), "y", feed), rtol=1e-5)


def test_a_walk_may_begin_further_back_than_the_one_before() -> None:
    runs, feed = Resumed(), {"x": normal(2, 4)}
    for keep in ({"d", "n"}, {"a", "n"}, set()):
        runs.begin(model(), None, (), keep)
        runs.run(feed, feed_key(feed))
        assert [kept.keys() for kept in runs.kept.values()] == [keep]
        for name, array in runs.kept[feed_key(feed)].items():
            np.testing.assert_allclose(array, computed(model(), name, feed), rtol=1e-5)


def test_another_model_goes_on_from_what_this_one_kept() -> None:
    runs, feed = Resumed(), {"x": normal(2, 4)}
    runs.begin(model(), None, (), {"a", "n"})
    runs.run(feed, feed_key(feed))
    other = parse(NODES, "float[n,4] x", "float[n,4] y", WEIGHTS | {"w": normal(4, 4, seed=9)})
    follower = Resumed(runs.kept)
    follower.begin(other, None, {"y"})
    np.testing.assert_allclose(follower.run(feed, feed_key(feed))["y"], computed(other, "y", feed), rtol=1e-5)


def test_what_cannot_be_fed_again_is_not_kept() -> None:
    nodes = "s = SequenceConstruct(x, x) a = Neg(x) c = ConcatFromSequence <axis = 0>(s) y = Add(c, a)"
    proto = parse(nodes, "float[1,4] x", "float[2,4] y")
    runs, feed = Resumed(), {"x": normal(1, 4)}
    keep = alive_before(proto, {"c"})
    assert keep == {"s", "a"}
    for wanted in ("a", "y"):
        runs.begin(proto, None, {wanted}, keep)
        np.testing.assert_array_equal(runs.run(feed, feed_key(feed))[wanted], computed(proto, wanted, feed))
    assert not runs.kept


def test_a_feed_is_known_by_its_values() -> None:
    first, second = {"x": normal(2, 4)}, {"x": normal(2, 4, seed=1)}
    assert feed_key(first) == feed_key({"x": first["x"].copy()}) != feed_key(second)
    assert feed_key({"x": first["x"].reshape(4, 2)}) != feed_key(first)
    words = np.array(["a", "b"], np.object_)
    assert feed_key({"x": words}) == feed_key({"x": words.copy()}) != feed_key({"x": words[::-1]})
