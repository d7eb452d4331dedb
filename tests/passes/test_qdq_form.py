"""The QDQ form: pairs, integer weights and biases, and float readers that keep exact values."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest
from onnx import ModelProto, TensorProto

from amct_onnx.errors import RecordError
from amct_onnx.passes.insert_qdq import QdqTarget
from amct_onnx.passes.quant_params import LayerQuant, TensorQuant
from amct_onnx.rewrite import OutputForm, prepare, rewrite
from tests.models import Array, initializers, normal, parse, run, summary

IMAGE, ANY = "float[1,4,5,5] x", "float[p,q,r,s] y"
CONVS = {name: normal(4, 4, 1, 1, seed=seed) for seed, name in enumerate("abcd")}
SIGNED = TensorQuant(0.05, 0)
POSITIVE = TensorQuant(0.05, -128)


def qdq(
    model: ModelProto,
    layers: Mapping[str, TensorQuant],
    pairs: Mapping[str, TensorQuant] | None = None,
    *,
    scales: int = 4,
    target: QdqTarget = QdqTarget.ONNXRUNTIME,
) -> ModelProto:
    scale = np.linspace(0.01, 0.02, scales, dtype=np.float32)
    quants = {name: LayerQuant(data, scale) for name, data in layers.items()}
    return rewrite(prepare(model, None), quants, OutputForm.QDQ, pairs=pairs, target=target)[0].to_proto()


def activations(proto: ModelProto) -> list[str]:
    """The graph without the nodes that hold weights and biases."""
    constants = {tensor.name for tensor in proto.graph.initializer}
    return summary(node for node in proto.graph.node if node.input[0] not in constants)


def operators(proto: ModelProto) -> list[str]:
    short = {"QuantizeLinear": "Q", "DequantizeLinear": "DQ"}
    constants = {tensor.name for tensor in proto.graph.initializer}
    return [short.get(node.op_type, node.op_type) for node in proto.graph.node if node.input[0] not in constants]


def dequantized(x: Array, quant: TensorQuant) -> Array:
    integers = np.clip(np.rint(x / np.float32(quant.scale)) + quant.offset, quant.qmin, quant.qmax)
    return ((integers - quant.offset) * np.float32(quant.scale)).astype(np.float32)


def test_a_layer_with_pairs_on_both_sides() -> None:
    weights = CONVS | {"k": normal(4, seed=9)}
    proto = qdq(parse("[L] y = Conv(x, a, k)", IMAGE, ANY, weights), {"L": SIGNED}, {"y": SIGNED})
    assert summary(proto.graph.node) == [
        "x.quantize: QuantizeLinear(x, x.scale, x.zero_point) -> x.quantized",
        "x.dequantize: DequantizeLinear(x.quantized, x.scale, x.zero_point) -> x.dequantized",
        "L.weight.dequantize: DequantizeLinear(a, L.weight.scale, L.weight.zero_point) -> L.weight.dequantized",
        "L.bias.dequantize: DequantizeLinear(k, L.bias.scale, L.bias.zero_point) -> L.bias.dequantized",
        "L: Conv(x.dequantized, L.weight.dequantized, L.bias.dequantized) -> y.float",
        "y.quantize: QuantizeLinear(y.float, y.scale, y.zero_point) -> y.quantized",
        "y.dequantize: DequantizeLinear(y.quantized, y.scale, y.zero_point) -> y",
    ]


def test_weights_biases_and_zero_points_as_stored() -> None:
    weights = CONVS | {"k": normal(4, seed=9)}
    arrays = initializers(qdq(parse("[L] y = Conv(x, a, k)", IMAGE, ANY, weights), {"L": TensorQuant(0.05, -7)}))
    scale = np.linspace(0.01, 0.02, 4, dtype=np.float32)
    np.testing.assert_array_equal(arrays["a"], np.clip(np.rint(CONVS["a"] / scale[:, None, None, None]), -128, 127))
    np.testing.assert_array_equal(arrays["L.weight.scale"], scale)
    np.testing.assert_array_equal(arrays["L.bias.scale"], scale * np.float32(0.05))
    np.testing.assert_array_equal(arrays["k"], np.rint(weights["k"] / (scale * np.float32(0.05)).astype(np.float64)))
    types = {name: array.dtype.name for name, array in arrays.items()}
    assert (types["a"], types["L.weight.zero_point"]) == ("int8", "int8")
    assert (types["k"], types["L.bias.zero_point"]) == ("int32", "int32")
    assert (types["x.zero_point"], arrays["x.zero_point"].item()) == ("uint8", 121)
    assert not arrays["L.weight.zero_point"].any()


def test_numbers_of_a_convolution() -> None:
    weights = CONVS | {"k": normal(4, seed=9)}
    model = parse("[L] y = Conv(x, a, k)", IMAGE, ANY, weights)
    x = normal(1, 4, 5, 5, seed=5)
    data = TensorQuant(0.05, -7)
    arrays = initializers(qdq(model, {"L": data}))
    weight = arrays["a"] * arrays["L.weight.scale"][:, None, None, None]
    want = np.einsum("nchw,oc->nohw", dequantized(x, data), weight[:, :, 0, 0])
    want = want + (arrays["k"] * arrays["L.bias.scale"])[:, None, None]
    got = run(qdq(model, {"L": data}), {"x": x}, optimized=False)[0]
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)


def test_a_per_tensor_scale_is_a_scalar_without_axis() -> None:
    proto = qdq(parse("[L] y = Conv(x, a)", IMAGE, ANY, CONVS), {"L": SIGNED}, scales=1)
    (node,) = [node for node in proto.graph.node if node.name == "L.weight.dequantize"]
    assert not node.attribute
    assert initializers(proto)["L.weight.scale"].shape == ()


@pytest.mark.parametrize(("nodes", "axis"), [("[L] y = Conv(x, a)", 0), ("[L] y = MatMul(x, m)", 1)])
def test_the_axis_of_a_per_channel_scale(nodes: str, axis: int) -> None:
    inputs = IMAGE if axis == 0 else "float[2,4] x"
    proto = qdq(parse(nodes, inputs, "float y", CONVS | {"m": normal(4, 4)}), {"L": SIGNED})
    (node,) = [node for node in proto.graph.node if node.name == "L.weight.dequantize"]
    assert [(entry.name, entry.i) for entry in node.attribute] == [("axis", axis)]


@pytest.mark.parametrize("op", ["Relu", "Clip"])
def test_a_clamp_that_the_pair_enforces_goes(op: str) -> None:
    bounds = {"low": np.asarray(np.float32(0)), "high": np.asarray(np.float32(6))}
    call = "Relu(s)" if op == "Relu" else "Clip(s, low, high)"
    model = parse(f"[L] s = Conv(x, a)  r = {call}  [M] y = Conv(r, b)", IMAGE, ANY, CONVS | bounds)
    six = TensorQuant(float(np.float32(6 / 255)), -128)
    proto = qdq(model, {"L": SIGNED, "M": six})
    assert operators(proto) == ["Q", "DQ", "Conv", "Q", "DQ", "Conv"]
    assert activations(proto)[3] == "r.quantize: QuantizeLinear(s, r.scale, r.zero_point) -> r.quantized"


KEPT = {
    "a range that begins below zero": ("r = Relu(s)", SIGNED),
    "a range that ends above six": ("r = Clip(s, low, high)", TensorQuant(0.03, -128)),
    "a range that begins below the clip": ("r = Clip(s, high)", POSITIVE),
    "bounds that are computed": ("k = Neg(low)  r = Clip(s, k, high)", TensorQuant(float(np.float32(6 / 255)), -128)),
    "a clamp with another reader before it": ("n = Neg(s)  r = Relu(s)", POSITIVE),
}


@pytest.mark.parametrize("case", KEPT)
def test_a_clamp_that_stays(case: str) -> None:
    text, quant = KEPT[case]
    bounds = {"low": np.asarray(np.float32(0)), "high": np.asarray(np.float32(6))}
    model = parse(f"[L] s = Conv(x, a)  {text}  [M] y = Conv(r, b)", IMAGE, ANY, CONVS | bounds)
    assert ("Relu" if "Relu" in text else "Clip") in operators(qdq(model, {"L": SIGNED, "M": quant}))


def test_a_lower_bound_that_float32_rounds() -> None:
    """90 steps of the float32 nearest to 1/90 lie a hair beyond 1 in double precision, and at 1 in float32."""
    step = float(np.float32(1 / 90))
    assert -90 * step < -1
    bounds = {"low": np.asarray(np.float32(-1))}
    model = parse("[L] s = Conv(x, a)  r = Clip(s, low)  [M] y = Conv(r, b)", IMAGE, ANY, CONVS | bounds)
    assert "Clip" not in operators(qdq(model, {"L": SIGNED, "M": TensorQuant(step, 90 - 128)}))


def test_a_clamp_that_leaves_the_graph_keeps_the_public_name() -> None:
    model = parse("[L] s = Conv(x, a)  y = Relu(s)", IMAGE, ANY, CONVS)
    proto = qdq(model, {"L": SIGNED}, {"y": POSITIVE})
    assert operators(proto) == ["Q", "DQ", "Conv", "Q", "DQ"]
    assert (proto.graph.node[-1].output[0], proto.graph.output[0].name) == ("y", "y")
    x = normal(1, 4, 5, 5, seed=5)
    want = dequantized(np.maximum(run(qdq(model, {"L": SIGNED}), {"x": x}, optimized=False)[0], 0), POSITIVE)
    np.testing.assert_allclose(run(proto, {"x": x}, optimized=False)[0], want, atol=1e-6)


def test_a_clamp_whose_input_leaves_the_graph_stays() -> None:
    model = parse("[L] s = Conv(x, a)  r = Relu(s)  [M] y = Conv(r, b)", IMAGE, ANY + ", float[p,q,r,s] s", CONVS)
    assert "Relu" in operators(qdq(model, {"L": SIGNED, "M": POSITIVE}))


def test_a_public_tensor_read_inside_keeps_its_name() -> None:
    model = parse("[L] s = Conv(x, a)  [M] y = Conv(s, b)", IMAGE, ANY + ", float[p,q,r,s] s", CONVS)
    proto = qdq(model, {"L": SIGNED, "M": SIGNED})
    assert activations(proto)[2:] == [
        "L: Conv(x.dequantized, L.weight.dequantized) -> s.float",
        "s.quantize: QuantizeLinear(s.float, s.scale, s.zero_point) -> s.quantized",
        "s.dequantize: DequantizeLinear(s.quantized, s.scale, s.zero_point) -> s",
        "M: Conv(s, M.weight.dequantized) -> y",
    ]


def test_float_readers_of_a_float_producer_keep_exact_values() -> None:
    model = parse("e = Exp(x)  [L] s = Conv(e, a)  n = Neg(e)  y = Add(s, n)", IMAGE, ANY, CONVS)
    proto = qdq(model, {"L": SIGNED})
    readers = {node.op_type: list(node.input) for node in proto.graph.node}
    assert readers["Neg"] == ["e"]
    assert readers["Conv"][0] == "e.dequantized"


def test_a_graph_input_stays_exact_for_float_readers() -> None:
    proto = qdq(parse("[L] s = Conv(x, a)  n = Neg(x)  y = Add(s, n)", IMAGE, ANY, CONVS), {"L": SIGNED})
    assert next(list(node.input) for node in proto.graph.node if node.op_type == "Neg") == ["x"]


def test_all_readers_of_an_integer_producer_take_the_dequantized_tensor() -> None:
    model = parse("[L] s = Conv(x, a)  [M] t = Conv(s, b)  n = Neg(s)  y = Add(t, n)", IMAGE, ANY, CONVS)
    proto = qdq(model, {"L": SIGNED, "M": SIGNED})
    readers = {node.name: list(node.input) for node in proto.graph.node}
    assert (readers["Neg_2"], readers["M"][0]) == (["s.dequantized"], "s.dequantized")


BODY = """
    {producer}  [M] t = Conv(s, b)
    u = If(c) <then_branch = p () => (float[p,q,r,s] v) {{ v = Neg(s) }},
               else_branch = q () => (float[p,q,r,s] w) {{ w = Identity(t) }}>
    y = Add(t, u)
"""


@pytest.mark.parametrize(("producer", "read"), [("[L] s = Conv(x, a)", "s.dequantized"), ("s = Exp(x)", "s")])
def test_readers_in_bodies(producer: str, read: str) -> None:
    model = parse(BODY.format(producer=producer), IMAGE + ", bool c", ANY, {"a": CONVS["a"], "b": CONVS["b"]})
    layers = {"M": SIGNED} | ({"L": SIGNED} if "Conv" in producer else {})
    proto = qdq(model, layers)
    branch = next(node for node in proto.graph.node if node.op_type == "If").attribute[0].g
    assert list(branch.node[0].input) == [read]
    feed = {"x": normal(1, 4, 5, 5), "c": np.array(True)}
    assert run(proto, feed)[0].shape == (1, 4, 5, 5)


def test_layers_left_float_read_exact_values() -> None:
    """A convolution without entry computes in float whatever its input; a pair before it would only cost accuracy."""
    model = parse("e = Exp(x)  [L] s = Conv(e, a)  [F] t = Conv(e, b)  y = Add(s, t)", IMAGE, ANY, CONVS)
    proto = qdq(model, {"L": SIGNED})
    readers = {node.name: list(node.input) for node in proto.graph.node}
    assert (readers["L"][0], readers["F"]) == ("e.dequantized", ["e", "b"])


def test_sums_and_constants_between_layers() -> None:
    weights = CONVS | {"k": normal(4, 5, 5, seed=7)}
    model = parse("[L] s = Conv(x, a)  m = Mul(s, k)  [M] y = Conv(m, b)", IMAGE, ANY, weights)
    proto = qdq(model, {"L": SIGNED, "M": SIGNED}, {"s": SIGNED, "k": TensorQuant(0.02, 5)})
    readers = {node.op_type: list(node.input) for node in proto.graph.node}
    assert readers["Mul"] == ["s.dequantized", "k.dequantized"]
    arrays = initializers(proto)
    np.testing.assert_array_equal(
        arrays["k.quantized"], np.clip(np.rint(weights["k"] / np.float32(0.02)) + 133, 0, 255)
    )
    assert arrays["k.quantized"].dtype == np.uint8
    assert "k" not in arrays


def test_names_the_model_does_not_have_are_ignored() -> None:
    model = parse("[L] y = Conv(x, a)", IMAGE, ANY, CONVS)
    assert qdq(model, {"L": SIGNED}, {"elsewhere": SIGNED}) == qdq(model, {"L": SIGNED})


PRODUCT = "[L] s = MatMul(x, m)  y = Add(s, k)"


@pytest.mark.parametrize(
    ("data", "bias", "stored"), [((2, 4), (4,), (1, 4)), ((2, 4), (1, 1, 4), (1, 1, 4)), ((4,), (4,), (4,))]
)
def test_the_bias_of_a_matmul_keeps_the_shape_of_the_result(
    data: tuple[int, ...], bias: tuple[int, ...], stored: tuple[int, ...]
) -> None:
    """Written as [1, N], so that the runtime does not merge it into a float Gemm; never another rank than before."""
    weights = {"m": normal(4, 4), "k": normal(*bias, seed=1)}
    model = parse(PRODUCT, f"float[{','.join(map(str, data))}] x", "float y", weights)
    model.graph.output[0].type.tensor_type.ClearField("shape")
    proto = qdq(model, {"L": SIGNED})
    assert initializers(proto)["k"].shape == stored
    feed = {"x": normal(*data, seed=2)}
    assert run(proto, feed)[0].shape == run(model, feed)[0].shape
    grid = np.linspace(0.01, 0.02, 4, dtype=np.float32) * np.float32(0.05)
    np.testing.assert_allclose(initializers(proto)["k"].ravel(), np.rint(weights["k"].ravel() / grid) * grid, rtol=1e-5)


def test_a_shared_weight_is_stored_once_for_one_scale() -> None:
    model = parse("[L] s = Conv(x, a)  [M] y = Conv(s, a)", IMAGE, ANY, {"a": CONVS["a"]})
    proto = qdq(model, {"L": SIGNED, "M": SIGNED})
    assert [node.input[1] for node in proto.graph.node if node.op_type == "Conv"] == ["L.weight.dequantized"] * 2
    assert initializers(proto)["a"].dtype == np.int8


def test_tensorrt_takes_int8_and_float_biases() -> None:
    weights = CONVS | {"k": normal(4, seed=9)}
    model = parse("[L] y = Conv(x, a, k)", IMAGE, ANY, weights)
    arrays = initializers(qdq(model, {"L": SIGNED}, target=QdqTarget.TENSORRT))
    assert (arrays["x.zero_point"].dtype.name, arrays["x.zero_point"].item()) == ("int8", 0)
    assert (arrays["k"].dtype.name, arrays["k"].shape) == ("float32", (4,))


def test_tensorrt_refuses_an_asymmetric_plan() -> None:
    model = parse("[L] y = Conv(x, a)", IMAGE, ANY, CONVS)
    with pytest.raises(RecordError, match="tensor 'x': TensorRT wants zero point 0, the plan says -7"):
        qdq(model, {"L": TensorQuant(0.05, -7)}, target=QdqTarget.TENSORRT)


def test_a_layer_without_integer_kernel_stays_float() -> None:
    source = parse("[L] s = Conv(x, a)  [T] y = ConvTranspose(s, b)", IMAGE, ANY, CONVS)
    model = qdq(source, {"L": TensorQuant(0.001, 0, 16), "T": SIGNED})
    assert [node.op_type for node in model.graph.node] == ["Conv", "ConvTranspose"]
    np.testing.assert_array_equal(initializers(model)["a"], CONVS["a"])


def test_a_value_info_of_a_removed_clamp_goes() -> None:
    model = parse("[L] s = Conv(x, a)  r = Relu(s)  [M] y = Conv(r, b)", IMAGE, ANY, CONVS)
    model.graph.value_info.add(name="r").type.tensor_type.elem_type = TensorProto.FLOAT
    assert not qdq(model, {"L": SIGNED, "M": POSITIVE}).graph.value_info
