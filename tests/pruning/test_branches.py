"""Pruning through If, around Loop, and what is said of layers in bodies."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import GraphProto, ModelProto, numpy_helper

import amct_onnx
from amct_onnx.api.prune import prune_groups
from tests.models import Array, normal, parse, run

WEIGHTS = {
    "w": normal(5, 8, seed=1),
    "u": normal(8, 6, seed=2),
    "k": normal(6, 8, seed=3),
    "big": normal(8, 8, seed=4),
    "v": normal(8, 3, seed=5),
}
BRANCHED = parse(
    """[first] s = MatMul(x, w)
       t = If(c) < then_branch = p () => (float[n,8] a) {
                       [down] a0 = MatMul(s, u) a1 = Relu(a0) [up] a = MatMul(a1, k) },
                   else_branch = q () => (float[n,8] b) { [only] b = MatMul(s, big) }>
       [last] y = MatMul(t, v)""",
    "float[n,5] x, bool c",
    "float[n,3] y",
    WEIGHTS,
)
LOOPED = parse(
    """[first] s = MatMul(x, w) [last] z = MatMul(s, v)
       [steps] y = Loop(times, , z) < body = d (int64 i, bool go, float[n,3] h) => (bool on, float[n,3] next) {
           on = Identity(go) [inside] next = MatMul(h, r) }>""",
    "float[n,5] x",
    "float[n,3] y",
    {"w": WEIGHTS["w"], "v": WEIGHTS["v"], "r": normal(3, 3), "times": np.array(2)},
)


def weights(graph: GraphProto) -> dict[str, Array]:
    return {entry.name: numpy_helper.to_array(entry) for entry in graph.initializer}


def feeds(count: int = 8) -> list[dict[str, Array]]:
    return [{"x": normal(16, 5, seed=index), "c": np.array(index % 2 == 0)} for index in range(count)]


def test_layers_in_branches_lose_channels_with_those_outside() -> None:
    result = amct_onnx.prune(BRANCHED, ratio=0.5)
    assert [(group.layers, group.channels, group.removed) for group in result.report.groups] == [
        (("first",), 8, 4),
        (("down",), 6, 3),
        (("up", "only"), 8, 4),
        (("last",), 3, 0),
    ]
    pruned = result.model.to_proto()
    onnx.checker.check_model(pruned)
    shapes = {name: values.shape for name, values in weights(pruned.graph).items()}
    assert shapes == {"w": (5, 4), "u": (4, 3), "k": (3, 4), "big": (4, 4), "v": (4, 3)}
    for flag in (True, False):
        assert run(pruned, {"x": normal(2, 5), "c": np.array(flag)})[0].shape == (2, 3)


@pytest.mark.parametrize("options", [{"ratio": 0.25}, {"ratio": 0.25, "importance": "energy"}, {"saving": 0.2}])
def test_with_data_what_is_seen_from_outside_is_fitted(options: dict[str, object]) -> None:
    # With a saving a multiple of eight channels stays, so the groups have to be wider.
    source = BRANCHED if "ratio" in options else widened()
    result = amct_onnx.prune(source, feeds(), **options)  # type: ignore[arg-type]
    assert set(result.report.fitted) <= {"last"}
    assert any(group.removed for group in result.report.groups)
    for feed in feeds(2):
        assert run(result.model, feed)[0].shape == (16, 3)


def widened() -> ModelProto:
    wide = ModelProto()
    wide.CopyFrom(BRANCHED)
    del wide.graph.initializer[:]
    sizes = {"w": (5, 64), "u": (64, 48), "k": (48, 64), "big": (64, 64), "v": (64, 3)}
    wide.graph.initializer.extend(
        numpy_helper.from_array(normal(*shape, seed=index), name) for index, (name, shape) in enumerate(sizes.items())
    )
    for attribute in wide.graph.node[1].attribute:
        attribute.g.output[0].type.tensor_type.shape.dim[1].dim_value = 64
    return wide


def test_of_two_branches_the_dearer_counts() -> None:
    report = prune_groups(BRANCHED)
    assert report.before.multiply_adds == 5 * 8 + max(2 * 8 * 6, 8 * 8) + 8 * 3
    assert report.before.parameters == sum(values.size for values in WEIGHTS.values())


def test_weights_that_stand_in_a_branch_lose_channels() -> None:
    source = ModelProto()
    source.CopyFrom(BRANCHED)
    (moved,) = [entry for entry in source.graph.initializer if entry.name == "big"]
    source.graph.initializer.remove(moved)
    (body,) = [attribute.g for attribute in source.graph.node[1].attribute if attribute.name == "else_branch"]
    body.initializer.append(moved)
    same, pruned = (amct_onnx.prune(each, ratio=0.5).model.to_proto() for each in (BRANCHED, source))
    for feed in feeds(2):
        np.testing.assert_array_equal(run(pruned, feed)[0], run(same, feed)[0])


def test_names_that_mean_two_sizes_are_not_followed() -> None:
    # Both branches call their inner tensor h, of 6 and of 4 numbers.
    source = parse(
        """[first] s = MatMul(x, w)
           t = If(c) < then_branch = p () => (float[n,8] a) { h = MatMul(s, u) a = MatMul(h, k) },
                       else_branch = q () => (float[n,8] b) { h = MatMul(s, e) b = MatMul(h, f) }>
           [last] y = MatMul(t, v)""",
        "float[n,5] x, bool c",
        "float[n,3] y",
        {**WEIGHTS, "e": normal(8, 4, seed=6), "f": normal(4, 8, seed=7)},
    )
    for flag in (True, False):
        pruned = amct_onnx.prune(source, ratio=0.5).model
        assert run(pruned, {"x": normal(2, 5), "c": np.array(flag)})[0].shape == (2, 3)


def test_layers_in_a_loop_keep_what_the_model_gives() -> None:
    result = amct_onnx.prune(LOOPED, [{"x": feed["x"]} for feed in feeds()], ratio=0.5, importance="energy")
    assert [(group.layers, group.removed) for group in result.report.groups] == [
        (("first",), 4),
        (("last",), 0),
        (("inside",), 0),
    ]
    assert {group.reason for group in result.report.groups[1:]} == {"it is the model's output 'y'"}
    assert run(result.model, {"x": normal(2, 5)})[0].shape == (2, 3)


def test_a_loop_counts_for_one_run() -> None:
    assert prune_groups(LOOPED).before.multiply_adds == 5 * 8 + 8 * 3 + 3 * 3


def test_layers_in_a_scan_with_a_batch_axis_are_named() -> None:
    source = parse(
        """[first] s = MatMul(x, w)
           end, y = Scan<num_scan_inputs = 1, body = d (float[8] a, float[8] step) => (float[8] b, float[3] each) {
               b = Add(a, step) [inside] each = MatMul(b, v) }>(lengths, start, s)""",
        "float[2,4,5] x, float[2,8] start",
        "float[2,4,3] y",
        {"w": WEIGHTS["w"], "v": WEIGHTS["v"]},
        opset=8,
    )
    source.graph.node[1].input[0] = ""
    report = prune_groups(source)
    assert report.notes[-1] == "layers in bodies are not pruned: 'inside' in that of Scan 'Scan_1'"
    assert [group.reason for group in report.groups] == ["Scan 'Scan_1': pruning has no rule for this operator"]
