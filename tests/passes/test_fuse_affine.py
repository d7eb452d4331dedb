"""Folding what follows a layer into it: the same numbers, and a reason wherever a user would ask."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import ModelProto, numpy_helper

from amct_onnx.passes.base import PassResult
from amct_onnx.passes.fuse_affine import FuseAffine
from amct_onnx.passes.locate import locate_layers
from tests.models import Array, imported, initializers, normal, parse, run, summary
from tests.passes.fusing import after, assert_same_numbers, data, operators, statistics

NODES = "[conv] s = Conv<group = {group}, pads = {pads}>(x, w{bias})  [norm] y = BatchNormalization(s, g, b, m, v)"


def conv_model(weight: tuple[int, ...], group: int = 1, *, bias: bool = True) -> tuple[ModelProto, Array]:
    rank = len(weight) - 2
    weights = {"w": normal(*weight)} | ({"c": normal(weight[0], seed=1)} if bias else {}) | statistics(weight[0])
    nodes = NODES.format(group=group, pads=[1] * (2 * rank), bias=", c" if bias else "")
    shape = [2, weight[1] * group, *[7] * rank]
    free = ",".join(f"d{axis}" for axis in range(len(shape)))
    model = parse(nodes, f"float{shape} x", f"float[{free}] y", weights)
    return model, normal(*shape, seed=2)


def fused(model: ModelProto, *, skip: tuple[str, ...] = ()) -> tuple[ModelProto, PassResult]:
    return after(model, FuseAffine(skip=skip))


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


def test_two_layers_and_two_normalizations_in_a_row() -> None:
    nodes = """
        [c1] s = Conv(x, w)  [n1] t = BatchNormalization(s, g, b, m, v)  r = Relu(t)
        [c2] u = Conv(r, w2)  [n2] q = BatchNormalization(u, g, b, m, v)  [n3] y = BatchNormalization(q, g, b, m, v)
    """
    weights = {"w": normal(4, 3, 1, 1), "w2": normal(4, 4, 1, 1, seed=3)} | statistics(4)
    model = parse(nodes, "float[1,3,5,5] x", "float[a,b,c,d] y", weights)
    proto, result = fused(model)
    assert result.merged == {"c1": ("c1", "n1"), "c2": ("c2", "n2", "n3")}
    data = {"x": normal(1, 3, 5, 5)}
    np.testing.assert_allclose(run(proto, data)[0], run(model, data)[0], rtol=1e-4, atol=1e-4)


CHAIN = "[bn] t = BatchNormalization(s, g, b, m, v)  [mul] u = Mul(k, t)  [add] y = Add(u, a)"
IMAGE, ANY = "float[2,4,7,7] x", "float[a,b,c,d] y"


@pytest.mark.parametrize("bias", ["", ", c"])
@pytest.mark.parametrize(
    ("layer", "shape"),
    [
        ("Conv", (6, 4, 3, 3)),
        ("Conv<group = 2>", (6, 2, 3, 3)),
        ("ConvTranspose", (4, 6, 3, 3)),
        ("ConvTranspose<group = 2>", (4, 3, 3, 3)),
        ("ConvTranspose<strides = [2, 2], output_padding = [1, 1]>", (4, 6, 2, 2)),
    ],
)
def test_a_chain_folds_completely(layer: str, shape: tuple[int, ...], bias: str) -> None:
    weights = {"w": normal(*shape), "c": normal(6, seed=1), "k": normal(6, 1, 1, seed=3), "a": normal(1, 6, 1, 1)}
    model = parse(f"[layer] s = {layer}(x, w{bias})  {CHAIN}", IMAGE, ANY, weights | statistics(6))
    proto, result = after(model, FuseAffine())
    assert operators(proto) == [layer.split("<")[0]]
    assert proto.graph.node[0].output == ["y"]
    assert result.merged == {"layer": ("layer", "bn", "mul", "add")}
    assert_same_numbers(model, proto, data(2, 4, 7, 7))


@pytest.mark.parametrize(
    ("layer", "shape", "bias"),
    [
        ("Gemm", (4, 6), ()),
        ("Gemm", (4, 6), (6,)),
        ("Gemm<transB = 1, alpha = 0.5, beta = 2.0>", (6, 4), (1, 6)),
        ("Gemm<beta = 0.0>", (4, 6), (6,)),
        ("Gemm<beta = 3.0>", (4, 6), (1,)),
    ],
)
def test_a_chain_behind_gemm(layer: str, shape: tuple[int, ...], bias: tuple[int, ...]) -> None:
    weights = {"w": normal(*shape), "k": normal(6, seed=3), "a": normal(1, 6)} | ({"c": normal(*bias)} if bias else {})
    nodes = f"[layer] s = {layer}(x, w{', c' if bias else ''})  {CHAIN}"
    model = parse(nodes, "float[5,4] x", "float[a,b] y", weights | statistics(6))
    proto, result = after(model, FuseAffine())
    assert operators(proto) == ["Gemm"]
    assert result.merged == {"layer": ("layer", "bn", "mul", "add")}
    assert_same_numbers(model, proto, data(5, 4))


@pytest.mark.parametrize("first", ["", "[bias] p = Add(s, c)", "[bias] p = Add(c, s)"])
def test_a_chain_behind_matmul_leaves_one_add(first: str) -> None:
    chain = CHAIN.replace("BatchNormalization(s", "BatchNormalization(p") if first else CHAIN
    weights = {"w": normal(4, 6), "c": normal(6, seed=1), "k": normal(6, seed=3), "a": normal(1, 6)} | statistics(6)
    model = parse(f"[layer] s = MatMul(x, w) {first} {chain}", "float[5,4] x", "float[a,b] y", weights)
    proto, result = after(model, FuseAffine())
    name = "bias" if first else "add"
    assert summary(proto.graph.node)[1] == f"{name}: Add(layer.product, layer.bias) -> y"
    assert operators(proto) == ["MatMul", "Add"]
    assert result.merged == {"layer": ("layer", *(("bias",) if first else ()), "bn", "mul", "add")}
    assert_same_numbers(model, proto, data(5, 4))
    (layer,) = locate_layers(imported(proto)).layers
    assert layer.bias is not None
    assert layer.output.name == "y"


def test_a_normalization_behind_matmul_becomes_its_bias() -> None:
    nodes = "[layer] s = MatMul(x, w) [bn] y = BatchNormalization(s, g, b, m, v)"
    model = parse(nodes, "float[5,4] x", "float[a,b] y", {"w": normal(4, 6)} | statistics(6))
    proto, _ = after(model, FuseAffine())
    assert summary(proto.graph.node)[1] == "layer.bias_add: Add(layer.product, layer.bias) -> y"
    assert_same_numbers(model, proto, data(5, 4))


def test_the_bias_of_a_matmul_stays_as_it_is() -> None:
    model = parse(
        "[p] s = MatMul(x, w) [q] y = Add(c, s)", "float[5,4] x", "float[a,b] y", {"w": normal(4, 6), "c": normal(6)}
    )
    proto, result = after(model, FuseAffine())
    assert result == PassResult()
    assert summary(proto.graph.node) == summary(model.graph.node)


@pytest.mark.parametrize("operand", [(), (1,), (6, 1, 1), (1, 6, 1, 1), (1, 1, 1, 1), (1, 1)])
@pytest.mark.parametrize("node", ["Mul(s, k)", "Mul(k, s)", "Div(s, k)", "Add(k, s)", "Sub(s, k)", "Sub(k, s)"])
def test_each_operator_with_each_shape(node: str, operand: tuple[int, ...]) -> None:
    values = np.asarray(normal(*operand) + np.float32(3), np.float32)
    model = parse(f"s = Conv(x, w) y = {node}", IMAGE, ANY, {"w": normal(6, 4, 1, 1), "k": values})
    proto, _ = after(model, FuseAffine())
    assert operators(proto) == ["Conv"]
    assert_same_numbers(model, proto, data(2, 4, 7, 7))


@pytest.mark.parametrize(
    ("node", "operand"),
    [
        ("Mul(s, k)", (7,)),
        ("Add(s, k)", (6, 7, 7)),
        ("Mul(s, k)", (6, 1, 7)),
        ("Mul(s, k)", (2, 1, 1, 1)),
        ("Add(s, k)", (1, 1, 1, 1, 1)),
        ("Div(k, s)", (6, 1, 1)),
    ],
)
def test_constants_over_space_batch_or_more_axes_stay(node: str, operand: tuple[int, ...]) -> None:
    free = ",".join("abcde"[: max(4, len(operand))])
    weights = {"w": normal(6, 4, 1, 1), "k": normal(*operand)}
    model = parse(f"s = Conv(x, w) y = {node}", IMAGE, f"float[{free}] y", weights)
    proto, result = after(model, FuseAffine())
    assert result == PassResult()
    assert_same_numbers(model, proto, data(2, 4, 7, 7))


@pytest.mark.parametrize("layer", ["Conv(x, w)", "ConvTranspose(x, v)"])
def test_a_constant_that_widens_the_output_stays(layer: str) -> None:
    """One output channel, six factors: six channels come out."""
    weights = {"w": normal(1, 4, 1, 1), "v": normal(4, 1, 1, 1), "k": normal(6, 1, 1)}
    model = parse(f"s = {layer} y = Mul(s, k)", IMAGE, ANY, weights)
    proto, result = after(model, FuseAffine())
    assert result == PassResult()
    assert run(proto, data(2, 4, 7, 7))[0].shape == (2, 6, 7, 7)


def test_a_wider_constant_behind_gemm_or_matmul_stays() -> None:
    for layer in ("Gemm", "MatMul"):
        model = parse(
            f"s = {layer}(x, w) y = Mul(s, k)", "float[1,4] x", "float[a,b] y", {"w": normal(4, 6), "k": normal(3, 1)}
        )
        assert after(model, FuseAffine())[1] == PassResult()


def test_a_row_constant_behind_data_of_unknown_rank_stays() -> None:
    """Behind a vector it would add an axis."""
    nodes = "r = Squeeze(x, axes) s = MatMul(r, w) y = Mul(s, k)"
    weights = {"w": normal(4, 6), "k": normal(1, 6), "axes": np.array([0], np.int64)}
    model = parse(nodes, "float[1,4] x", "float[a,b] y", weights)
    proto, result = after(model, FuseAffine())
    assert result == PassResult()
    assert run(proto, data(1, 4))[0].shape == (1, 6)


def test_a_normalization_behind_matmul_of_unknown_rank_stays() -> None:
    nodes = "r = Squeeze(x, axes) s = MatMul(r, w) [bn] y = BatchNormalization(s, g, b, m, v)"
    weights = {"w": normal(4, 6), "axes": np.array([0], np.int64)} | statistics(6)
    model = parse(nodes, "float[1,5,6,4] x", "float[a,b,c] y", weights)
    proto, result = after(model, FuseAffine())
    assert "number of axes" in result.refusals[0].reason
    assert_same_numbers(model, proto, data(1, 5, 6, 4))


def test_a_normalization_along_another_axis_than_the_products() -> None:
    nodes = "s = MatMul(x, w) [bn] y = BatchNormalization(s, g, b, m, v)"
    model = parse(nodes, "float[5,6,4] x", "float[a,b,c] y", {"w": normal(4, 6)} | statistics(6))
    proto, result = after(model, FuseAffine())
    assert "another axis" in result.refusals[0].reason
    assert_same_numbers(model, proto, data(5, 6, 4))


def test_a_bias_that_varies_from_row_to_row() -> None:
    nodes = "s = Gemm(x, w, c) [bn] y = BatchNormalization(s, g, b, m, v)"
    weights = {"w": normal(4, 6), "c": normal(5, 1)} | statistics(6)
    model = parse(nodes, "float[5,4] x", "float[a,b] y", weights)
    proto, result = after(model, FuseAffine())
    assert "C input" in result.refusals[0].reason
    assert_same_numbers(model, proto, data(5, 4))


@pytest.mark.parametrize("value", [0.0, 1e-38, np.inf, np.nan])
def test_divisors_without_a_sound_inverse_stay(value: float) -> None:
    model = parse(
        "s = Conv(x, w) y = Div(s, k)", IMAGE, ANY, {"w": normal(6, 4, 1, 1), "k": np.array(value, np.float32)}
    )
    assert after(model, FuseAffine())[1] == PassResult()


def test_factors_that_are_too_large_together_stop_the_chain() -> None:
    nodes = "[c] s = Conv(x, w) [m1] t = Mul(s, k) [m2] u = Mul(t, k) [m3] y = Mul(u, k)"
    weights = {"w": normal(6, 4, 1, 1), "k": np.array(1e9, np.float32)}
    proto, result = after(parse(nodes, IMAGE, ANY, weights), FuseAffine())
    assert result.merged == {"c": ("c", "m1", "m2")}
    assert operators(proto) == ["Conv", "Mul"]


def test_a_square_and_two_readers_stay() -> None:
    for nodes in ("s = Conv(x, w) y = Mul(s, s)", "s = Conv(x, w) t = Mul(s, k) y = Add(s, t)"):
        model = parse(nodes, IMAGE, ANY, {"w": normal(6, 4, 1, 1), "k": normal()})
        assert after(model, FuseAffine())[1] == PassResult()


def test_arithmetic_inside_a_body_stays() -> None:
    text = """
        s = Conv(x, w)
        y = If(c) <then_branch = p () => (float[a,b,d,e] t) { t = Mul(s, k) },
                   else_branch = q () => (float[a,b,d,e] u) { u = Neg(x) }>
    """
    model = parse(text, "float[1,4,5,5] x, bool c", "float[a,b,d,e] y", {"w": normal(4, 4, 1, 1), "k": normal(4, 1, 1)})
    assert after(model, FuseAffine())[1] == PassResult()


def test_before_operator_set_7_arithmetic_stays() -> None:
    """Constants broadcast by an attribute there."""
    nodes = "s = Conv(x, w) y = Mul<broadcast = 1, axis = 1>(s, k)"
    model = parse(nodes, IMAGE, ANY, {"w": normal(7, 4, 1, 1), "k": normal(7)}, opset=6)
    assert after(model, FuseAffine())[1] == PassResult()


def test_a_shared_weight_takes_a_shift_but_no_factor() -> None:
    nodes = "[one] s = Conv(x, w) t = {}(s, k) [two] z = Conv(x, w) y = Add(t, z)"
    for op, fuses in (("Add", True), ("Mul", False)):
        model = parse(nodes.format(op), IMAGE, ANY, {"w": normal(6, 4, 1, 1), "k": normal(6, 1, 1)})
        proto, result = after(model, FuseAffine())
        assert bool(result.changed) is fuses
        assert [refusal.reason for refusal in result.refusals] == (
            [] if fuses else ["not fused into 'one': the layer shares its weights with another node"]
        )
        assert_same_numbers(model, proto, data(2, 4, 7, 7))


@pytest.mark.parametrize(
    ("skip", "merged"),
    [
        ("layer", {}),
        ("bn", {}),
        ("mul", {"layer": ("layer", "bn")}),
        ("add", {"layer": ("layer", "bn", "mul")}),
    ],
)
def test_each_name_of_a_chain_can_be_skipped(skip: str, merged: dict[str, tuple[str, ...]]) -> None:
    weights = {"w": normal(6, 4, 1, 1), "k": normal(6, 1, 1), "a": normal(6, 1, 1)} | statistics(6)
    model = parse(f"[layer] s = Conv(x, w)  {CHAIN}", IMAGE, ANY, weights)
    proto, result = after(model, FuseAffine(skip={skip}))
    assert result.merged == merged
    assert result.withheld == ("layer",)
    assert result.refusals[0].reason == "not fused into 'layer': skipped on request"
    assert_same_numbers(model, proto, data(2, 4, 7, 7))
