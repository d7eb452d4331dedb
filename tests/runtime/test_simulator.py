"""The integer simulator against numbers typed in by hand, and against the fake-quant model."""

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import amct_onnx
from amct_onnx.errors import ModelError
from amct_onnx.passes.quant_params import LayerQuant, TensorQuant
from amct_onnx.rewrite import OutputForm, prepare, rewrite
from amct_onnx.runtime import fetch, open_session
from amct_onnx.runtime.simulator import open_simulator
from tests.models import normal, parse


def model_of(nodes, inputs, outputs, weights, opset=13):
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in inputs.items()],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in outputs.items()],
        [numpy_helper.from_array(np.asarray(value, np.float32), name) for name, value in weights.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


def forms(proto, quants):
    prepared = prepare(proto, None)
    return {form: rewrite(prepared, quants, form)[0].to_proto() for form in (OutputForm.ASCEND, OutputForm.FAKE_QUANT)}


def run(session, feed):
    return fetch(session, [output.name for output in session.get_outputs()], feed)


def test_convolution_with_padding_offset_and_bias_computed_by_hand():
    """x = [1, 2, 3] quantized with scale 0.5, offset -10, kernel [2, -1, 3], bias 0.75, padding 1 on both sides.

    q = round(x / 0.5) - 10 = [-8, -6, -4], so q - offset = [2, 4, 6]; weights with scale 0.5 are [4, -2, 6];
    the bias is 0.75 / (0.5 * 0.5) = 3. Padded with real zero:
      y0 = 0*4 + 2*-2 + 4*6 + 3 = 23,  y1 = 2*4 + 4*-2 + 6*6 + 3 = 39,  y2 = 4*4 + 6*-2 + 0*6 + 3 = 7, times 0.25.
    """
    node = helper.make_node("Conv", ["x", "w", "b"], ["y"], name="conv", kernel_shape=[3], pads=[1, 1])
    proto = model_of([node], {"x": [1, 1, 3]}, {"y": [1, 1, 3]}, {"w": [[[2, -1, 3]]], "b": [0.75]})
    made = forms(proto, {"conv": LayerQuant(TensorQuant(0.5, -10), np.array([0.5], np.float32))})
    feed = {"x": np.array([[[1, 2, 3]]], np.float32)}
    expected = [[[5.75, 9.75, 1.75]]]
    np.testing.assert_array_equal(run(open_simulator(made[OutputForm.ASCEND]), feed)[0], expected)
    np.testing.assert_array_equal(run(open_session(made[OutputForm.FAKE_QUANT]), feed)[0], expected)


CASES = {
    "conv 2-D": ("Conv", [2, 3, 9, 9], [4, 3, 3, 3], {"pads": [1, 0, 2, 1], "strides": [2, 1]}),
    "conv dilated": ("Conv", [1, 2, 9, 9], [3, 2, 3, 3], {"dilations": [2, 2], "pads": [2, 2, 2, 2]}),
    "conv auto_pad": ("Conv", [1, 2, 7, 9], [3, 2, 4, 3], {"auto_pad": "SAME_UPPER", "strides": [2, 2]}),
    "conv grouped": ("Conv", [1, 4, 6, 6], [6, 2, 3, 3], {"group": 2}),
    "conv depthwise": ("Conv", [1, 4, 6, 6], [4, 1, 3, 3], {"group": 4, "pads": [1, 1, 1, 1]}),
    "conv depthwise, multiplier 2": ("Conv", [1, 4, 6, 6], [8, 1, 3, 3], {"group": 4}),
    "conv 1-D": ("Conv", [2, 3, 11], [4, 3, 5], {"pads": [2, 2]}),
    "conv transposed": ("ConvTranspose", [1, 3, 5, 5], [3, 4, 3, 3], {"strides": [2, 2], "output_padding": [1, 1]}),
    "conv transposed, grouped": ("ConvTranspose", [2, 4, 5, 5], [4, 3, 3, 3], {"group": 2, "pads": [1, 1, 1, 1]}),
    "conv transposed 1-D": ("ConvTranspose", [1, 2, 7], [2, 3, 4], {"dilations": [2]}),
    "gemm": ("Gemm", [5, 7], [7, 3], {}),
    "gemm transB alpha beta": ("Gemm", [5, 7], [3, 7], {"transB": 1, "alpha": 0.5, "beta": 2.0}),
    "matmul 3-D": ("MatMul", [2, 5, 7], [7, 3], {}),
    "pool": ("AveragePool", [1, 3, 8, 8], None, {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1], "count_include_pad": 1}),
}


def layer_forms(case, data, scale, bits=8, *, per_channel=True):
    """Deploy and fake-quant model of one layer, a feed, and the float model's result."""
    op, shape, weight_shape, attrs = CASES[case]
    rng = np.random.default_rng(list(CASES).index(case))
    weights = {}
    channels = 1
    if weight_shape:
        channels = weight_shape[0] if op == "Conv" or attrs.get("transB") else weight_shape[1] * attrs.get("group", 1)
        weights["w"] = rng.standard_normal(weight_shape)
        if op != "MatMul":
            weights["b"] = rng.standard_normal(channels)
    node = helper.make_node(op, ["x", *weights], ["y"], name="layer", **attrs)
    proto = model_of([node], {"x": shape}, {"y": None}, weights)
    size = channels if per_channel else 1
    scales = (scale * rng.uniform(1, 1.3, size)).astype(np.float32) if weight_shape else np.ones(1, np.float32)
    made = forms(proto, {"layer": LayerQuant(data, scales, bits)})
    feed = {"x": (rng.standard_normal(shape) * 0.5).astype(np.float32)}
    return made, feed, run(open_session(proto), feed)[0]


@pytest.mark.parametrize("per_channel", [True, False], ids=["per channel", "per tensor"])
@pytest.mark.parametrize("case", CASES)
def test_agrees_with_the_fake_quant_model_to_the_bit(case, per_channel):
    made, feed, exact = layer_forms(case, TensorQuant(0.0173, 31), 0.03, per_channel=per_channel)
    simulated = run(open_simulator(made[OutputForm.ASCEND]), feed)[0]
    faked = run(open_session(made[OutputForm.FAKE_QUANT], optimize=False), feed)[0]
    np.testing.assert_array_equal(simulated, faked)
    assert np.abs(simulated - exact).max() < 0.2 * np.abs(exact).max()


WIDE = [case for case in CASES if CASES[case][0] in ("Conv", "ConvTranspose", "Gemm")]


@pytest.mark.parametrize("case", WIDE)
def test_sixteen_bit_activations_follow_integer_arithmetic(case):
    """The fake-quant model sums in float32 what may exceed 2^24, so only nearly equal; the float model is close."""
    made, feed, exact = layer_forms(case, TensorQuant(1e-4, 1234, 16), 0.03)
    simulated = run(open_simulator(made[OutputForm.ASCEND]), feed)[0]
    faked = run(open_session(made[OutputForm.FAKE_QUANT], optimize=False), feed)[0]
    np.testing.assert_allclose(faked, simulated, rtol=1e-5, atol=1e-5)
    assert np.abs(simulated - exact).max() < 0.05 * np.abs(exact).max()


def test_sixteen_bits_computed_by_hand():
    """q - offset = [300, -40000, 20000], integer weights [3, -2, 1]."""
    node = helper.make_node("Conv", ["x", "w", "b"], ["y"], name="conv", kernel_shape=[3])
    proto = model_of([node], {"x": [1, 1, 3]}, {"y": None}, {"w": [[[1.5, -1.0, 0.5]]], "b": [-0.01]})
    made = forms(proto, {"conv": LayerQuant(TensorQuant(2**-10, 9000, 16), np.array([0.5], np.float32))})
    feed = {"x": (np.array([[[300, -40000, 20000]]]) * 2.0**-10).astype(np.float32)}
    # The bias is round(-0.01 / (0.5 * 2^-10)) = -20; the sum 900 + 80000 + 20000 - 20 = 100880, times 2^-11.
    assert run(open_simulator(made[OutputForm.ASCEND]), feed)[0].item() == 100880 * 2.0**-11


NARROW = ["conv 2-D", "conv depthwise", "conv transposed", "gemm transB alpha beta", "matmul 3-D"]


@pytest.mark.parametrize("bits", [6, 7])
@pytest.mark.parametrize("case", NARROW)
def test_narrow_weights_agree_to_the_bit(case, bits):
    made, feed, _ = layer_forms(case, TensorQuant(0.0173, 31), 0.4, bits)
    simulated = run(open_simulator(made[OutputForm.ASCEND]), feed)[0]
    np.testing.assert_array_equal(simulated, run(open_session(made[OutputForm.FAKE_QUANT], optimize=False), feed)[0])


FOUR_BITS = {
    "conv": ("Conv", [1, 4, 6, 6], [3, 4, 3, 3], {"pads": [1, 1, 1, 1]}),
    "conv transposed": ("ConvTranspose", [1, 2, 5], [2, 3, 4], {}),
    "gemm": ("Gemm", [5, 6], [6, 3], {}),
    "gemm transB": ("Gemm", [5, 6], [3, 6], {"transB": 1}),
    "matmul": ("MatMul", [2, 5, 6], [6, 3], {}),
}


@pytest.mark.parametrize("case", FOUR_BITS)
def test_packed_weights_are_simulated_to_the_bit(case, monkeypatch):
    monkeypatch.setitem(CASES, case, FOUR_BITS[case])
    made, feed, exact = layer_forms(case, TensorQuant(0.0173, 31), 0.3, 4)
    simulated = run(open_simulator(made[OutputForm.ASCEND]), feed)[0]
    np.testing.assert_array_equal(simulated, run(open_session(made[OutputForm.FAKE_QUANT], optimize=False), feed)[0])
    assert np.abs(simulated - exact).max() < 0.4 * np.abs(exact).max()


def test_four_bit_weights_share_bytes_along_the_input_channels():
    weight = np.array([[[1], [-8], [7], [-1]], [[0], [2], [-3], [4]]], np.float32)
    proto = model_of(
        [helper.make_node("Conv", ["x", "w"], ["y"], name="c")], {"x": [1, 4, 3]}, {"y": None}, {"w": weight}
    )
    made = forms(proto, {"c": LayerQuant(TensorQuant(1.0, 0), np.ones(1, np.float32), 4)})
    stored = next(t for t in made[OutputForm.ASCEND].graph.initializer if t.name == "w")
    packed = numpy_helper.to_array(stored)
    assert (stored.data_type, packed.shape) == (TensorProto.INT8, (2, 2, 1))
    # Low half first: 1 and -8 give 0x81, 7 and -1 give 0xF7; 0 and 2 give 0x20, -3 and 4 give 0x4D.
    assert packed.view(np.uint8).ravel().tolist() == [0x81, 0xF7, 0x20, 0x4D]


@pytest.mark.parametrize("order", ["matmul first", "bias first"])
def test_matmul_bias_in_either_operand_order(order):
    rng = np.random.default_rng(3)
    operands = ["p", "b"] if order == "matmul first" else ["b", "p"]
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["p"], name="product"),
        helper.make_node("Add", operands, ["y"], name="add"),
    ]
    weights = {"w": rng.standard_normal((6, 4)), "b": rng.standard_normal(4)}
    proto = model_of(nodes, {"x": [3, 6]}, {"y": [3, 4]}, weights)
    made = forms(proto, {"product": LayerQuant(TensorQuant(0.02, 5), np.array([0.02], np.float32))})
    feed = {"x": rng.standard_normal((3, 6)).astype(np.float32)}
    deploy = made[OutputForm.ASCEND]
    assert [node.op_type for node in deploy.graph.node] == ["AscendQuant", "MatMul", "Add", "AscendDequant"]
    simulated = run(open_simulator(deploy), feed)[0]
    np.testing.assert_array_equal(simulated, run(open_session(made[OutputForm.FAKE_QUANT], optimize=False), feed)[0])


def test_large_accumulators_agree_within_float_precision():
    """Sums beyond 2^24 round in float32, but not in int32."""
    rng = np.random.default_rng(5)
    weights = {"w": rng.uniform(0.5, 1, (4000, 2)), "b": [0.1, 0.2]}
    proto = model_of(
        [helper.make_node("Gemm", ["x", "w", "b"], ["y"], name="fc")], {"x": [2, 4000]}, {"y": None}, weights
    )
    made = forms(proto, {"fc": LayerQuant(TensorQuant(1 / 128, 0), np.array([1 / 127], np.float32))})
    feed = {"x": rng.uniform(0.5, 1, (2, 4000)).astype(np.float32)}
    simulated = run(open_simulator(made[OutputForm.ASCEND]), feed)[0]
    faked = run(open_session(made[OutputForm.FAKE_QUANT], optimize=False), feed)[0]
    np.testing.assert_allclose(faked, simulated, rtol=2**-22)


def test_old_opset_is_refused_by_name():
    node = helper.make_node("Conv", ["x", "w"], ["y"], name="conv")
    proto = model_of([node], {"x": [1, 1, 3]}, {"y": None}, {"w": [[[1.0]]]}, opset=9)
    deploy = rewrite(
        prepare(proto, None), {"conv": LayerQuant(TensorQuant(0.5, 0), np.ones(1, np.float32))}, OutputForm.ASCEND
    )[0].to_proto()
    assert isinstance(deploy, onnx.ModelProto)
    with pytest.raises(ModelError, match="operator set 9"):
        open_simulator(deploy)


def test_float16_enters_where_none_leaves():
    """The deploy model's AscendQuant reads float16 itself, and only an input is of that type."""
    weights = {"w": normal(2, 3, 3, 3)}
    model = parse("c = Cast<to = 1>(x)  y = Conv(c, w)", "float16[1,3,4,4] x", "float[1,2,2,2] y", weights)
    feed = {"x": normal(1, 3, 4, 4).astype(np.float16)}
    result = amct_onnx.quantize(model, [feed], trial=False)
    simulated = run(open_simulator(result.model("ascend")), feed)[0]
    np.testing.assert_array_equal(simulated, run(open_session(result.model("fake_quant"), optimize=False), feed)[0])
