"""The deploy form against AMCT's published names and attributes, typed in by hand."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import AttributeProto, ModelProto, NodeProto, TensorProto

from amct_onnx.errors import RecordError
from amct_onnx.graph.channels import plain
from amct_onnx.passes.insert_ascend import pack_dequant_scale, unpack_dequant_scale
from amct_onnx.passes.quant_params import LayerQuant, TensorQuant, quantize_bias, quantize_weight
from amct_onnx.rewrite import OutputForm, prepare, rewrite
from tests.models import Array, initializers, normal, parse, summary

IMAGE, ANY = "float[1,2,5,5] x", "float[a,b,c,d] y"
HALF = TensorQuant(0.5, -3)


def quant(*scales: float, data: TensorQuant = HALF) -> LayerQuant:
    return LayerQuant(data, np.array(scales, np.float32))


def deploy(model: ModelProto, **quants: LayerQuant) -> ModelProto:
    return rewrite(prepare(model, None), quants, OutputForm.ASCEND)[0].to_proto()


def attributes(node: NodeProto) -> dict[str, tuple[int, object]]:
    values = {AttributeProto.FLOAT: "f", AttributeProto.INT: "i", AttributeProto.STRING: "s"}
    return {entry.name: (entry.type, getattr(entry, values[entry.type])) for entry in node.attribute}


def conv(weights: dict[str, Array] | None = None, nodes: str = "[L] y = Conv(x, w, b)", **more: str) -> ModelProto:
    return parse(nodes, IMAGE, more.get("outputs", ANY), weights or {"w": normal(3, 2, 1, 1), "b": normal(3, seed=1)})


def test_a_layer_in_the_middle() -> None:
    proto = deploy(conv(nodes="i = Neg(x)  [L] s = Conv(i, w, b)  y = Relu(s)"), L=quant(0.1, 0.2, 0.4))
    assert summary(proto.graph.node) == [
        "Neg_0: Neg(x) -> i",
        "L.quant: AscendQuant(i) -> L.quant.output0",
        "L: Conv(L.quant.output0, w, b) -> s",
        "L.dequant: AscendDequant(s, L.dequant.param) -> L.dequant.output0",
        "Relu_2: Relu(L.dequant.output0) -> y",
    ]


def test_a_layer_that_leaves_the_graph_keeps_the_public_name() -> None:
    proto = deploy(conv(), L=quant(0.1, 0.2, 0.4))
    assert summary(proto.graph.node) == [
        "L.quant: AscendQuant(x) -> L.quant.output0",
        "L: Conv(L.quant.output0, w, b) -> L_output0",
        "L.dequant: AscendDequant(L_output0, L.dequant.param) -> y",
    ]
    assert [info.name for info in proto.graph.output] == ["y"]


def test_an_output_that_is_also_read_inside() -> None:
    proto = deploy(conv(nodes="[L] s = Conv(x, w, b)  y = Relu(s)", outputs=ANY + ", float[a,b,c,d] s"), L=quant(0.1))
    assert summary(proto.graph.node)[1:] == [
        "L: Conv(L.quant.output0, w, b) -> L_output0",
        "L.dequant: AscendDequant(L_output0, L.dequant.param) -> s",
        "Relu_1: Relu(s) -> y",
    ]


def test_attributes_and_domains() -> None:
    before, _, after = deploy(conv(), L=quant(0.1)).graph.node
    assert attributes(before) == {
        "scale": (AttributeProto.FLOAT, 2.0),
        "offset": (AttributeProto.FLOAT, -3.0),
        "dst_type": (AttributeProto.STRING, b"INT8"),
    }
    assert attributes(after) == {"dtype": (AttributeProto.INT, 0)}
    assert (before.domain, after.domain) == ("", "")


def test_the_multiplier_is_the_float32_reciprocal() -> None:
    before = deploy(conv(), L=quant(0.1, data=TensorQuant(float(np.float32(0.3)), 0))).graph.node[0]
    assert attributes(before)["scale"][1] == float(np.float32(1) / np.float32(0.3))


@pytest.mark.parametrize(
    ("scales", "packed"), [((0.25,), [0x3E000000]), ((0.25, 0.5, 1), [0x3E000000, 0x3E800000, 0x3F000000])]
)
def test_the_dequantization_parameter(scales: tuple[float, ...], packed: list[int]) -> None:
    """Scale_w times scale_d = 0.5 as float32 bits in the low half of a uint64."""
    proto = deploy(conv(), L=quant(*scales))
    (param,) = [tensor for tensor in proto.graph.initializer if tensor.name == "L.dequant.param"]
    assert (param.data_type, list(param.dims)) == (TensorProto.UINT64, [len(packed)])
    assert initializers(proto)["L.dequant.param"].tolist() == packed
    np.testing.assert_array_equal(unpack_dequant_scale(np.array(packed, np.uint64)), np.array(scales) * 0.5)


def test_packing_and_unpacking() -> None:
    scale = np.abs(normal(7)) + 1e-30
    np.testing.assert_array_equal(unpack_dequant_scale(pack_dequant_scale(scale)), scale)


def test_weights_are_int8_under_their_name_and_biases_int32() -> None:
    weight = np.array([[0.1, 0.125, 0.375, -0.625], [50, -50, 0.25, -0.25], [0, 0, 1, 0]], np.float32)
    bias = np.array([0.1875, -0.9375, 1e3], np.float32)
    model = parse("[L] y = Conv(x, w, b)", "float[1,4,5,5] x", ANY, {"w": weight.reshape(3, 4, 1, 1), "b": bias})
    arrays = initializers(deploy(model, L=quant(0.25, 0.25, 1)))
    assert (arrays["w"].dtype, arrays["w"].shape) == (np.dtype(np.int8), (3, 4, 1, 1))
    # Halves go to the even neighbour: 0.125 / 0.25 to 0, 0.375 / 0.25 to 2, the biases 1.5 to 2 and -7.5 to -8.
    assert arrays["w"].reshape(3, 4).tolist() == [[0, 0, 2, -2], [127, -128, 1, -1], [0, 0, 1, 0]]
    assert arrays["b"].dtype == np.int32
    assert arrays["b"].tolist() == [2, -8, 2000]


def test_layers_without_bias_get_none() -> None:
    proto = deploy(conv({"w": normal(3, 2, 1, 1)}, "[L] y = Conv(x, w)"), L=quant(0.1))
    assert list(proto.graph.node[1].input) == ["L.quant.output0", "w"]


@pytest.mark.parametrize("operands", ["s, b", "b, s"])
def test_a_matmul_is_dequantized_behind_its_bias(operands: str) -> None:
    weights = {"w": normal(3, 4), "b": normal(4, seed=1)}
    model = parse(f"[L] s = MatMul(x, w)  [A] y = Add({operands})", outputs="float[2,4] y", weights=weights)
    proto = deploy(model, L=quant(0.1))
    assert summary(proto.graph.node) == [
        "L.quant: AscendQuant(x) -> L.quant.output0",
        "L: MatMul(L.quant.output0, w) -> s",
        f"A: Add({operands}) -> L_output0",
        "L.dequant: AscendDequant(L_output0, L.dequant.param) -> y",
    ]
    assert initializers(proto)["b"].dtype == np.int32


def test_a_gemm_is_plain_and_an_average_pool_has_no_weight() -> None:
    gemm = parse("[L] y = Gemm<transB = 1>(x, w)", outputs="float[2,4] y", weights={"w": normal(4, 3)})
    proto = deploy(gemm, L=quant(0.1))
    assert (list(proto.graph.node[1].attribute), initializers(proto)["w"].shape) == ([], (3, 4))
    pool = parse("[L] y = AveragePool<kernel_shape = [2,2]>(x)", IMAGE, ANY)
    proto = deploy(pool, L=quant(1))
    assert [node.op_type for node in proto.graph.node] == ["AscendQuant", "AveragePool", "AscendDequant"]
    assert initializers(proto)["L.dequant.param"].tolist() == [0x3F000000]


BRANCHES = "[A] s = Conv(x, w)  [B] t = Conv(x, v)  y = Add(s, t)"
PAIR = {"w": normal(2, 2, 1, 1), "v": normal(2, 2, 1, 1, seed=1)}


def test_equal_quants_on_one_tensor_are_merged_into_the_first() -> None:
    proto = deploy(conv(PAIR, BRANCHES), A=quant(0.1), B=quant(0.2))
    assert [node.name for node in proto.graph.node if node.op_type == "AscendQuant"] == ["A.quant"]
    assert [node.input[0] for node in proto.graph.node if node.op_type == "Conv"] == ["A.quant.output0"] * 2


@pytest.mark.parametrize("other", [TensorQuant(0.5, -2), TensorQuant(0.25, -3), TensorQuant(0.5, -3, 16)])
def test_different_quants_stay_apart(other: TensorQuant) -> None:
    proto = deploy(conv(PAIR, BRANCHES), A=quant(0.1), B=quant(0.1, data=other))
    assert [node.name for node in proto.graph.node if node.op_type == "AscendQuant"] == ["A.quant", "B.quant"]


def test_a_shared_weight_with_one_scale_stays_shared_under_its_name() -> None:
    proto = deploy(conv(PAIR, BRANCHES.replace("v)", "w)")), A=quant(0.1), B=quant(0.1))
    assert [node.input[1] for node in proto.graph.node if node.op_type == "Conv"] == ["w", "w"]
    assert initializers(proto)["w"].dtype == np.int8


def test_a_shared_weight_with_two_scales_is_stored_twice() -> None:
    proto = deploy(conv(PAIR, BRANCHES.replace("v)", "w)")), A=quant(0.1), B=quant(0.5))
    assert [node.input[1] for node in proto.graph.node if node.op_type == "Conv"] == ["w_1", "w"]
    arrays = initializers(proto)
    for name, scale in (("w_1", 0.1), ("w", 0.5)):
        np.testing.assert_array_equal(arrays[name], np.rint(PAIR["w"] / np.float32(scale)).astype(np.int8))


def test_a_weight_that_a_float_node_reads_stays_for_it() -> None:
    nodes = "[A] s = Conv(x, w)  t = Conv(x, w)  y = Add(s, t)"
    arrays = initializers(deploy(conv(PAIR, nodes), A=quant(0.1)))
    assert (arrays["w"].dtype, arrays["w_1"].dtype) == (np.dtype(np.float32), np.dtype(np.int8))


def test_layers_without_entry_stay_float() -> None:
    proto = deploy(conv(PAIR, BRANCHES), B=quant(0.1))
    assert [node.op_type for node in proto.graph.node] == ["Conv", "AscendQuant", "Conv", "AscendDequant", "Add"]
    assert proto.graph.node[0].input[0] == "x"


def test_constants_left_without_reader_go_and_others_stay() -> None:
    nodes = """
        k = Constant<value = float[1,2,1,1] {1.0, 2.0}>()  i = Identity(k)
        unread = Constant<value = float {1.0}>()  same = Identity(x)
        [L] y = Conv(same, i)
    """
    proto = deploy(conv(None, nodes), L=quant(0.1))
    assert [node.op_type for node in proto.graph.node] == [
        "Constant",
        "Identity",
        "AscendQuant",
        "Conv",
        "AscendDequant",
    ]
    assert proto.graph.node[0].output[0] == "unread"


def test_value_infos_that_are_no_longer_true_go() -> None:
    model = conv(nodes="[L] s = Conv(x, w, b)  y = Relu(s)")
    for name in ("s", "y"):
        info = model.graph.value_info.add(name=name)
        info.type.tensor_type.elem_type = TensorProto.FLOAT
    assert [info.name for info in deploy(model, L=quant(0.1)).graph.value_info] == ["y"]


def test_a_batch_normalization_is_folded_first() -> None:
    statistics = {name: np.ones(3, np.float32) for name in "gcmv"}
    weights = {"w": normal(3, 2, 1, 1)} | statistics
    proto = deploy(conv(weights, "[L] s = Conv(x, w)  y = BatchNormalization(s, g, c, m, v)"), L=quant(0.1))
    assert [node.op_type for node in proto.graph.node] == ["AscendQuant", "Conv", "AscendDequant"]
    assert initializers(proto)["L.bias"].dtype == np.int32


@pytest.mark.parametrize("bias", [1e9, -1e9, np.inf, np.nan])
def test_a_bias_beyond_int32_is_refused(bias: float) -> None:
    weights = {"w": normal(3, 2, 1, 1), "b": np.array([0, bias, 0], np.float32)}
    with pytest.raises(RecordError) as caught:
        deploy(conv(weights), L=quant(0.1, 0.2, 0.4))
    assert "layer 'L': the bias of output channel 1 does not fit int32 with scale_w * scale_d = 0.1" in str(
        caught.value
    )
    assert "raise scale_w" in str(caught.value)


def test_the_largest_bias_that_fits() -> None:
    scale = np.array([1], np.float32)
    assert quantize_bias("L", np.array([2.0**31 - 128], np.float32), scale).tolist() == [2**31 - 128]
    with pytest.raises(RecordError):
        quantize_bias("L", np.array([2.0**31], np.float32), scale)


@pytest.mark.parametrize(("bits", "low", "high"), [(4, -8, 7), (6, -32, 31), (7, -64, 63), (8, -128, 127)])
def test_narrow_weights_are_cut_to_their_range(bits: int, low: int, high: int) -> None:
    integers = quantize_weight(
        np.array([[-999, 999, -1.5, 2.5]], np.float32), np.ones(1, np.float32), plain(0, (1, 4)), bits
    )
    assert integers.tolist() == [[low, high, -2, 2]]


@pytest.mark.parametrize("axis", [0, 1])
def test_large_weights_are_quantized_block_by_block(axis: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("amct_onnx.passes.quant_params._BLOCK", 20)
    weight = normal(7, 5, 3)
    scale = np.linspace(0.01, 0.05, weight.shape[axis], dtype=np.float32)
    shape = [-1, 1, 1] if axis == 0 else [1, -1, 1]
    expected = np.clip(np.rint(weight / scale.reshape(shape)), -128, 127).astype(np.int8)
    np.testing.assert_array_equal(quantize_weight(weight, scale, plain(axis, weight.shape)), expected)
    assert quantize_weight(np.empty((0, 3), np.float32), scale[:1], plain(0, (0, 3))).shape == (0, 3)
