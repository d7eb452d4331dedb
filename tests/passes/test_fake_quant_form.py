"""The fake-quant form: its names, and its numbers against the arithmetic written out in numpy.

Models run without the runtime's own optimizations, which fold the dequantizing Mul into the weights.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from onnx import ModelProto

from amct_onnx.passes.quant_params import LayerQuant, TensorQuant
from amct_onnx.rewrite import OutputForm, prepare, rewrite
from tests.models import Array, initializers, normal, parse, run, summary

DATA = TensorQuant(float(np.float32(0.031)), -20)
Accumulate = Callable[[Array, Array], Array]


def exact(proto: ModelProto, x: Array) -> Array:
    return run(proto, {"x": x}, optimized=False)[0]


def lowered(model: ModelProto, **quants: LayerQuant) -> ModelProto:
    return rewrite(prepare(model, None), quants, OutputForm.FAKE_QUANT)[0].to_proto()


def expected(
    x: Array, weight: Array, bias: Array | None, quant: LayerQuant, axis: int, accumulate: Accumulate
) -> Array:
    """Quantize, accumulate in integers, dequantize; `accumulate` is the layer itself, channels last in its result."""
    data = quant.data
    multiplier = np.float32(1) / np.float32(data.scale)
    integers = np.rint(x * multiplier) + np.float32(data.offset)
    integers = np.clip(integers, data.qmin, data.qmax).astype(np.int64) - data.offset
    shape = [-1 if index == axis else 1 for index in range(weight.ndim)]
    scale = quant.weight_scale.reshape(shape) if quant.weight_scale.size > 1 else quant.weight_scale
    q_weight = np.clip(np.rint(weight / scale), -128, 127).astype(np.int64)
    factor = quant.weight_scale * np.float32(data.scale)
    total = accumulate(integers, q_weight)
    if bias is not None:
        total = total + np.rint(bias.astype(np.float64) / factor.astype(np.float64)).astype(np.int64)
    assert np.abs(total).max() < 2**24
    return total.astype(np.float32) * factor


def convolve(group: int, stride: int, pad: int, dilation: int) -> Accumulate:
    """A convolution of integers in two dimensions, by its definition."""

    def accumulate(x: Array, weight: Array) -> Array:
        out, per_group, height, width = weight.shape
        padded = np.pad(x, ((0, 0), (0, 0), (pad, pad), (pad, pad)))
        rows = (padded.shape[2] - dilation * (height - 1) - 1) // stride + 1
        columns = (padded.shape[3] - dilation * (width - 1) - 1) // stride + 1
        result = np.zeros((len(x), rows, columns, out), np.int64)
        for channel in range(out):
            first = channel // (out // group) * per_group
            for i in range(height):
                for j in range(width):
                    window = padded[:, first : first + per_group, i * dilation :, j * dilation :]
                    window = window[:, :, : (rows - 1) * stride + 1 : stride, : (columns - 1) * stride + 1 : stride]
                    result[..., channel] += np.einsum("nchw,c->nhw", window, weight[channel, :, i, j])
        return result

    return accumulate


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("per_channel", [True, False])
@pytest.mark.parametrize(
    ("out", "group", "stride", "pad", "dilation"), [(4, 1, 1, 1, 1), (4, 2, 2, 1, 1), (6, 6, 1, 2, 2), (5, 1, 2, 0, 1)]
)
def test_convolutions(
    out: int, group: int, stride: int, pad: int, dilation: int, per_channel: bool, bias: bool
) -> None:
    weight = normal(out, 6 // group, 3, 3)
    vector = normal(out, seed=1) if bias else None
    scale = np.linspace(0.01, 0.03, out if per_channel else 1, dtype=np.float32)
    nodes = (
        f"[L] y = Conv<group = {group}, strides = [{stride},{stride}], pads = [{pad},{pad},{pad},{pad}], "
        f"dilations = [{dilation},{dilation}]>(x, w{', b' if bias else ''})"
    )
    weights = {"w": weight} | ({} if vector is None else {"b": vector})
    model = parse(nodes, "float[2,6,9,9] x", "float[a,b,c,d] y", weights)
    quant = LayerQuant(DATA, scale)
    x = 2 * normal(2, 6, 9, 9, seed=2)
    want = expected(x, weight, vector, quant, 0, convolve(group, stride, pad, dilation))
    np.testing.assert_array_equal(exact(lowered(model, L=quant), x), np.moveaxis(want, -1, 1))


def test_a_convolution_in_one_dimension() -> None:
    weight, bias, x = normal(4, 3, 3), normal(4, seed=1), normal(2, 3, 9, seed=2)
    model = parse("[L] y = Conv(x, w, b)", "float[2,3,9] x", "float[a,b,c] y", {"w": weight, "b": bias})
    quant = LayerQuant(DATA, np.full(4, 0.02, np.float32))

    def accumulate(data: Array, kernel: Array) -> Array:
        wide = np.pad(data[:, :, None, :], ((0, 0), (0, 0), (1, 1), (0, 0)))
        tall = np.pad(kernel[:, :, None, :], ((0, 0), (0, 0), (1, 1), (0, 0)))
        return convolve(1, 1, 0, 1)(wide, tall)[:, 0]

    want = expected(x, weight, bias, quant, 0, accumulate)
    np.testing.assert_array_equal(exact(lowered(model, L=quant), x), np.moveaxis(want, -1, 1))


@pytest.mark.parametrize("scales", [1, 5])
@pytest.mark.parametrize(
    "nodes",
    [
        "[L] y = Gemm(x, w, b)",
        "[L] s = MatMul(x, w)  y = Add(s, b)",
        "[L] s = MatMul(x, w)  y = Add(b, s)",
    ],
)
def test_matrix_products(nodes: str, scales: int) -> None:
    weight, bias, x = normal(6, 5), normal(5, seed=1), normal(4, 6, seed=2)
    model = parse(nodes, "float[4,6] x", "float[4,5] y", {"w": weight, "b": bias})
    quant = LayerQuant(DATA, np.linspace(0.01, 0.02, scales, dtype=np.float32))
    want = expected(x, weight, bias, quant, 1, np.matmul)
    np.testing.assert_array_equal(exact(lowered(model, L=quant), x), want)


def test_a_matmul_of_three_dimensions_and_of_one() -> None:
    weight = normal(6, 5)
    quant = LayerQuant(DATA, np.linspace(0.01, 0.02, 5, dtype=np.float32))
    for shape in ((2, 3, 6), (6,)):
        dims = ",".join(map(str, shape))
        model = parse("[L] y = MatMul(x, w)", f"float[{dims}] x", "float y", {"w": weight})
        model.graph.output[0].type.tensor_type.ClearField("shape")
        x = normal(*shape, seed=2)
        want = expected(x, weight, None, quant, 1, np.matmul)
        np.testing.assert_array_equal(exact(lowered(model, L=quant), x), want)


def test_average_pooling() -> None:
    model = parse(
        "[L] y = AveragePool<kernel_shape = [2,2], strides = [2,2]>(x)", "float[1,3,4,4] x", "float[a,b,c,d] y"
    )
    x = normal(1, 3, 4, 4)
    integers = np.clip(np.rint(x * (np.float32(1) / np.float32(DATA.scale))) + DATA.offset, -128, 127) - DATA.offset
    means = integers.reshape(1, 3, 2, 2, 2, 2).mean(axis=(3, 5), dtype=np.float64).astype(np.float32)
    got = exact(lowered(model, L=LayerQuant(DATA, np.ones(1, np.float32))), x)
    np.testing.assert_array_equal(got, means * np.float32(DATA.scale))


def test_sixteen_bits() -> None:
    weight, x = normal(3, 2), 1000 * normal(4, 3)
    data = TensorQuant(float(np.float32(0.05)), 77, 16)
    quant = LayerQuant(data, np.array([0.1], np.float32))
    model = parse("[L] y = MatMul(x, w)", "float[4,3] x", "float[4,2] y", {"w": weight})
    want = expected(x, weight, None, quant, 1, np.matmul)
    np.testing.assert_array_equal(exact(lowered(model, L=quant), x), want)


def test_one_convolution_by_hand() -> None:
    """Rounding to even, saturation, padding by real zeros, an offset and a bias, worked out on paper."""
    x = np.array([[[[0.25, 0.75, 100.0, -100.0]]]], np.float32)
    weights = {"w": np.array([[[[1.0, 2.0]]]], np.float32), "b": np.array([0.5], np.float32)}
    model = parse("[L] y = Conv<pads = [0,1,0,0]>(x, w, b)", "float[1,1,1,4] x", "float[a,b,c,d] y", weights)
    quant = LayerQuant(TensorQuant(0.5, 3), np.array([1.0], np.float32))
    # x / 0.5 rounds to [0, 2, 200, -200]; with the offset cut to [3, 5, 127, -128]; without it [0, 2, 124, -131].
    # The kernel [1, 2] on [0, 0, 2, 124, -131] gives [0, 4, 250, -138]; the bias is 1; one unit is worth 0.5.
    assert exact(lowered(model, L=quant), x).reshape(-1).tolist() == [0.5, 2.5, 125.5, -68.5]


def test_names_of_nodes_tensors_and_constants() -> None:
    weights = {"w": normal(3, 2, 1, 1), "b": normal(3)}
    model = parse("[L] s = Conv(x, w, b)  y = Relu(s)", "float[1,2,5,5] x", "float[a,b,c,d] y", weights)
    proto = lowered(model, L=LayerQuant(DATA, np.array([0.1, 0.2, 0.4], np.float32)))
    prefix = "L.quant.fakequant"
    assert summary(proto.graph.node) == [
        f"{prefix}.mul: Mul(x, {prefix}.scale) -> {prefix}.mul.output0",
        f"{prefix}.round: Round({prefix}.mul.output0) -> {prefix}.round.output0",
        f"{prefix}.add: Add({prefix}.round.output0, {prefix}.offset) -> {prefix}.add.output0",
        f"{prefix}.clip: Clip({prefix}.add.output0, {prefix}.min_val, {prefix}.max_val) -> {prefix}.clip.output0",
        f"{prefix}.sub: Sub({prefix}.clip.output0, {prefix}.offset) -> L.quant.output0",
        "L: Conv(L.quant.output0, w, b) -> s",
        "L.fakedequant.mul: Mul(s, L.fakedequant.dqscale) -> L.dequant.output0",
        "Relu_1: Relu(L.dequant.output0) -> y",
    ]
    arrays = initializers(proto)
    assert arrays["L.fakedequant.dqscale"].shape == (1, 3, 1, 1)
    assert (arrays[f"{prefix}.min_val"], arrays[f"{prefix}.max_val"], arrays[f"{prefix}.offset"]) == (-128, 127, -20)
    assert {array.dtype for array in arrays.values()} == {np.dtype(np.float32)}


@pytest.mark.parametrize(("nodes", "shape"), [("[L] y = Gemm(x, w)", (1, 4)), ("[L] y = MatMul(x, w)", (4,))])
def test_shape_of_the_dequantization_scale(nodes: str, shape: tuple[int, ...]) -> None:
    model = parse(nodes, outputs="float[2,4] y", weights={"w": normal(3, 4)})
    for scales, expected_shape in ((4, shape), (1, ())):
        proto = lowered(model, L=LayerQuant(DATA, np.full(scales, 0.1, np.float32)))
        assert initializers(proto)["L.fakedequant.dqscale"].shape == expected_shape


def test_a_shared_weight_becomes_float_once() -> None:
    model = parse("[A] s = MatMul(x, w)  [B] y = MatMul(s, w)", "float[2,3] x", "float[2,3] y", {"w": normal(3, 3)})
    quant = LayerQuant(DATA, np.array([0.1], np.float32))
    proto = lowered(model, A=quant, B=quant)
    assert initializers(proto)["w"].dtype == np.float32
    np.testing.assert_array_equal(initializers(proto)["w"], np.rint(normal(3, 3) / np.float32(0.1)))


def test_an_older_model_is_raised_to_what_the_form_needs() -> None:
    model = parse("[L] s = MatMul(x, w)  y = Clip<min = 0.0, max = 6.0>(s)", weights={"w": normal(3, 3)}, opset=9)
    quant = LayerQuant(DATA, np.array([0.01], np.float32))
    proto = lowered(model, L=quant)
    assert proto.opset_import[0].version == 11
    x = normal(2, 3)
    want = np.clip(expected(x, normal(3, 3), None, quant, 1, np.matmul), 0, 6)
    np.testing.assert_array_equal(exact(proto, x), want)
