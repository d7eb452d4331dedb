"""Folding BatchNormalization into convolutions: the same numbers, and a reason wherever it is not done."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import ModelProto, numpy_helper

from amct_onnx.graph import build, import_model, name_nodes
from amct_onnx.passes.base import PassResult
from amct_onnx.passes.fuse_conv_bn import FuseConvBn
from tests.models import Array, initializers, normal, parse, run, summary

NODES = "[conv] s = Conv<group = {group}, pads = {pads}>(x, w{bias})  [norm] y = BatchNormalization(s, g, b, m, v)"


def statistics(channels: int, seed: int = 5) -> dict[str, Array]:
    rng = np.random.default_rng(seed)
    arrays = {name: rng.normal(size=channels).astype(np.float32) for name in "gbm"}
    return arrays | {"v": rng.uniform(0.1, 2, channels).astype(np.float32)}


def conv_model(weight: tuple[int, ...], group: int = 1, *, bias: bool = True) -> tuple[ModelProto, Array]:
    rank = len(weight) - 2
    weights = {"w": normal(*weight)} | ({"c": normal(weight[0], seed=1)} if bias else {}) | statistics(weight[0])
    nodes = NODES.format(group=group, pads=[1] * (2 * rank), bias=", c" if bias else "")
    shape = [2, weight[1] * group, *[7] * rank]
    free = ",".join(f"d{axis}" for axis in range(len(shape)))
    model = parse(nodes, f"float{shape} x", f"float[{free}] y", weights)
    return model, normal(*shape, seed=2)


def fused(model: ModelProto, *, skip: tuple[str, ...] = ()) -> tuple[ModelProto, PassResult]:
    graph = import_model(model)
    name_nodes(graph)
    result = FuseConvBn(skip=skip).run(graph)
    return build(graph).to_proto(), result


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize(
    ("weight", "group"), [((4, 3, 3), 1), ((4, 3, 3, 3), 1), ((6, 2, 3, 3), 2), ((5, 1, 3, 3), 5), ((2, 3, 2, 2, 2), 1)]
)
def test_numbers_stay(weight: tuple[int, ...], group: int, bias: bool) -> None:
    model, data = conv_model(weight, group, bias=bias)
    proto, result = fused(model)
    assert [node.op_type for node in proto.graph.node] == ["Conv"]
    assert result.merged == {"conv": ("conv", "norm")}
    np.testing.assert_allclose(run(proto, {"x": data})[0], run(model, {"x": data})[0], rtol=1e-4, atol=1e-4)


def test_names_of_weights_and_of_the_output_stay() -> None:
    proto, _ = fused(conv_model((4, 3, 3, 3))[0])
    assert summary(proto.graph.node) == ["conv: Conv(x, w, c) -> y"]
    assert initializers(proto).keys() == {"w", "c"}
    proto, _ = fused(conv_model((4, 3, 3, 3), bias=False)[0])
    assert summary(proto.graph.node) == ["conv: Conv(x, w, conv.bias) -> y"]


def test_weights_behind_constant_nodes_are_folded() -> None:
    model, data = conv_model((4, 3, 3, 3))
    expected = run(model, {"x": data})[0]
    tensor = next(tensor for tensor in model.graph.initializer if tensor.name == "w")
    constant = parse("w = Constant<value = float {0.0}>()").graph.node[0]
    constant.attribute[0].t.CopyFrom(tensor)
    model.graph.initializer.remove(tensor)
    model.graph.node.insert(0, constant)
    proto, result = fused(model)
    assert result.changed == ("conv",)
    np.testing.assert_allclose(run(proto, {"x": data})[0], expected, rtol=1e-4, atol=1e-4)


def reason(model: ModelProto, **more: tuple[str, ...]) -> str:
    proto, result = fused(model, **more)
    assert "BatchNormalization" in [node.op_type for node in proto.graph.node]
    assert not result.changed
    (refusal,) = result.refusals
    assert refusal.node == "norm"
    return refusal.reason


def test_skipped_on_request() -> None:
    assert reason(conv_model((4, 3, 3, 3))[0], skip=("conv",)) == "not fused into 'conv': skipped on request"


def test_another_reader_of_the_convolution() -> None:
    model, _ = conv_model((4, 3, 3, 3))
    model.graph.node.append(parse("z = Relu(s)").graph.node[0])
    assert "other readers" in reason(model)


def test_a_convolution_that_leaves_the_graph() -> None:
    model, data = conv_model((4, 3, 3, 3))
    model.graph.output.append(parse("s = Relu(x)", outputs="float[a,b,c,d] s").graph.output[0])
    assert "other readers" in reason(model)
    proto, _ = fused(model)
    np.testing.assert_array_equal(run(proto, {"x": data})[1], run(model, {"x": data})[1])


def test_a_normalization_inside_a_body() -> None:
    """Folding it would take it out of its branch."""
    text = """
        [conv] s = Conv(x, w)
        y = If(c) <then_branch = p () => (float[a,b,d,e] t) { [norm] t = BatchNormalization(s, g, b, m, v) },
                   else_branch = q () => (float[a,b,d,e] u) { u = Neg(x) }>
    """
    weights = {"w": normal(4, 4, 1, 1)} | statistics(4)
    model = parse(text, "float[1,4,5,5] x, bool c", "float[a,b,d,e] y", weights)
    proto, result = fused(model)
    assert result.refusals[0].reason == "not fused into 'conv': it lies inside a control-flow body"
    feed = {"x": normal(1, 4, 5, 5), "c": np.array(True)}
    np.testing.assert_array_equal(run(proto, feed)[0], run(model, feed)[0])


def test_training_mode() -> None:
    model, _ = conv_model((4, 3, 3, 3))
    model.graph.node[1].attribute.append(parse("y = N<training_mode = 1>(x)").graph.node[0].attribute[0])
    model.graph.node[1].output.extend(["running_mean", "running_var"])
    assert "training mode" in reason(model)


@pytest.mark.parametrize(("attributes", "fuses"), [("", False), ("<is_test = 1>", True)])
def test_before_operator_set_7_training_was_the_default(attributes: str, fuses: bool) -> None:
    nodes = f"[conv] s = Conv(x, w)  [norm] y = BatchNormalization{attributes}(s, g, b, m, v)"
    model = parse(nodes, "float[1,3,5,5] x", "float[a,b,c,d] y", {"w": normal(4, 3, 1, 1)} | statistics(4), opset=6)
    assert bool(fused(model)[1].changed) is fuses


def test_statistics_per_position() -> None:
    nodes = "[conv] s = Conv(x, w)  [norm] y = BatchNormalization<spatial = 0>(s, g, b, m, v)"
    model = parse(nodes, "float[1,3,5,5] x", "float[a,b,c,d] y", {"w": normal(4, 3, 1, 1)} | statistics(4), opset=8)
    assert "every position" in reason(model)


def test_computed_statistics() -> None:
    model, _ = conv_model((4, 3, 3, 3))
    model.graph.node.insert(0, parse("mean = Abs(m)").graph.node[0])
    model.graph.node[2].input[3] = "mean"
    assert "computed at run time" in reason(model)


def test_a_shared_weight() -> None:
    model, data = conv_model((3, 3, 1, 1))
    model.graph.node.append(parse("[other] z = Conv(x, w)").graph.node[0])
    model.graph.output.append(parse("z = Relu(x)", outputs="float[a,b,c,d] z").graph.output[0])
    assert "shares its weights" in reason(model)
    np.testing.assert_array_equal(run(fused(model)[0], {"x": data})[1], run(model, {"x": data})[1])


def test_other_element_types() -> None:
    model, _ = conv_model((4, 3, 1, 1))
    for index, tensor in enumerate(model.graph.initializer):
        values = numpy_helper.to_array(tensor).astype(np.float64)
        model.graph.initializer[index].CopyFrom(numpy_helper.from_array(values, tensor.name))
    assert "only float32" in reason(model)


def test_statistics_that_are_not_finite() -> None:
    model, _ = conv_model((4, 3, 1, 1))
    variance = next(tensor for tensor in model.graph.initializer if tensor.name == "v")
    variance.CopyFrom(numpy_helper.from_array(np.full(4, -1, np.float32), "v"))
    assert "not finite" in reason(model)


def test_a_chain_fuses_only_what_follows_directly() -> None:
    nodes = """
        [c1] s = Conv(x, w)  [n1] t = BatchNormalization(s, g, b, m, v)  r = Relu(t)
        [c2] u = Conv(r, w2)  [n2] q = BatchNormalization(u, g, b, m, v)  [n3] y = BatchNormalization(q, g, b, m, v)
    """
    weights = {"w": normal(4, 3, 1, 1), "w2": normal(4, 4, 1, 1, seed=3)} | statistics(4)
    model = parse(nodes, "float[1,3,5,5] x", "float[a,b,c,d] y", weights)
    proto, result = fused(model)
    assert result.merged == {"c1": ("c1", "n1"), "c2": ("c2", "n2")}
    data = {"x": normal(1, 3, 5, 5)}
    np.testing.assert_allclose(run(proto, data)[0], run(model, data)[0], rtol=1e-4, atol=1e-4)
