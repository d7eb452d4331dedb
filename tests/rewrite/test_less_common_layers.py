"""Layers that exporters write seldom: 3-D convolutions, pooling with dilations."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import ModelProto

import amct_onnx
from amct_onnx.rewrite import OutputForm
from amct_onnx.runtime import fetch
from amct_onnx.runtime.simulator import open_simulator
from tests.models import Array, normal, parse, run
from tests.passes.fusing import operators

VOLUME = "float[n,4,5,6,7] x"
WEIGHTS = {"a": normal(4, 2, 2, 3, 3), "p": normal(4, seed=1), "b": normal(3, 4, 1, 1, 1, seed=2)}


def noise_db(want: Array, got: Array) -> float:
    return float(10 * np.log10(np.square(want).sum() / max(np.square(want - got).sum(), 1e-30)))


def quantized(model: ModelProto, shape: tuple[int, ...]) -> tuple[amct_onnx.CompressionResult, list[dict[str, Array]]]:
    feeds = [{"x": normal(*shape, seed=seed)} for seed in range(5, 11)]
    return amct_onnx.quantize(model, feeds, trial=False), feeds


def test_three_dimensional_convolutions() -> None:
    """Devices compute them without zero point, so none is planned, although the default has one."""
    model = parse(
        "[L] s = Conv<group = 2>(x, a, p) r = Relu(s) [M] y = Conv(r, b)", VOLUME, "float[n,3,4,4,5] y", WEIGHTS
    )
    result, feeds = quantized(model, (2, 4, 5, 6, 7))
    layers = result.record.layers
    assert {name: (entry.offset_d, len(entry.scale_w)) for name, entry in layers.items()} == {"L": (0, 4), "M": (0, 3)}
    (want,) = run(model, feeds[0])
    fake = result.models[OutputForm.FAKE_QUANT].to_proto()
    for proto in (fake, result.models[OutputForm.QDQ].to_proto()):
        assert noise_db(want, run(proto, feeds[0])[0]) > 30
    session = open_simulator(result.models[OutputForm.ASCEND].to_proto())
    np.testing.assert_array_equal(fetch(session, ["y"], feeds[0])[0], run(fake, feeds[0], optimized=False)[0])


def test_a_transposed_three_dimensional_convolution_stays_float() -> None:
    model = parse(
        "[L] s = Conv<group = 2>(x, a) [T] y = ConvTranspose(s, b)",
        VOLUME,
        "float[n,e,d,f,g] y",
        {**WEIGHTS, "b": normal(4, 3, 1, 1, 1)},
    )
    result, _ = quantized(model, (1, 4, 5, 6, 7))
    assert {refusal.node: refusal.reason for refusal in result.report.refusals} == {
        "T": "only 1-D and 2-D transposed convolutions are quantized"
    }


@pytest.mark.parametrize(("dilations", "kept"), [("[1, 1]", 0), ("[2, 2]", 1)])
def test_pooling_with_dilations(dilations: str, kept: int) -> None:
    """onnxruntime's integer pooling refuses the attribute; without one it would compute something else."""
    model = parse(
        f"[P] y = AveragePool<kernel_shape = [2, 2], dilations = {dilations}>(x)",
        "float[n,3,8,8] x",
        "float[n,3,e,f] y",
        {},
        opset=19,
    )
    result, feeds = quantized(model, (1, 3, 8, 8))
    (want,) = run(model, feeds[0])
    proto = result.models[OutputForm.QDQ].to_proto()
    assert sum(entry.name == "dilations" for node in proto.graph.node for entry in node.attribute) == kept
    assert ("QuantizeLinear" in operators(proto)) == (not kept)
    for form in (OutputForm.QDQ, OutputForm.FAKE_QUANT):
        assert noise_db(want, run(result.models[form].to_proto(), feeds[0])[0]) > 30


@pytest.mark.parametrize("opset", [13, 19])
@pytest.mark.parametrize(
    "window",
    [
        "kernel_shape = [2, 2], strides = [2, 2], ceil_mode = 1",
        "kernel_shape = [3, 3], strides = [2, 2], pads = [1, 1, 1, 1], ceil_mode = 1",
        'kernel_shape = [2, 2], auto_pad = "SAME_UPPER"',
    ],
)
def test_a_last_window_that_sticks_out(window: str, opset: int) -> None:
    """Where padding counts, the integer kernel of onnxruntime counts what lies beyond it as well."""
    model = parse(
        f"[A] s = Conv(x, w) [P] t = AveragePool<{window}, count_include_pad = 1>(s) [B] y = Conv(t, v)",
        "float[n,3,9,8] x",
        "float[n,c,e,f] y",
        {"w": normal(4, 3, 1, 1), "v": normal(4, 4, 1, 1, seed=1)},
        opset=opset,
    )
    result, feeds = quantized(model, (1, 3, 9, 8))
    (want,) = run(model, feeds[0])
    for form in (OutputForm.QDQ, OutputForm.FAKE_QUANT):
        assert noise_db(want, run(result.models[form].to_proto(), feeds[0])[0]) > 30


def test_a_softmax_above_its_range_between_two_layers() -> None:
    """The integer Softmax of older versions of onnxruntime makes the lowest value of what is above the highest."""
    model = parse(
        "[A] s = Conv(x, w) t = Softmax<axis = 3>(s) [B] y = Conv(t, v)",
        "float[n,3,9,8] x",
        "float[n,c,e,f] y",
        {"w": normal(4, 3, 1, 1), "v": np.abs(normal(4, 4, 1, 1, seed=1))},
    )
    calm = [{"x": 0.1 * normal(1, 3, 9, 8, seed=seed)} for seed in range(4)]
    qdq = amct_onnx.quantize(model, calm, formats=["qdq"], trial=False).model("qdq")
    feed = {"x": 0.3 * normal(1, 3, 9, 8, seed=9)}
    # Numbers may be cut off at the end of the range, but do not begin again at the other.
    np.testing.assert_allclose(run(qdq, feed)[0], run(qdq, feed, optimized=False)[0], atol=0.02)


@pytest.mark.parametrize("shape", [(2, 5, 4), (2, 3, 5, 4)])
@pytest.mark.parametrize("batch", [(3,), (2, 3), (1,)])
def test_products_with_a_batch_of_weights(shape: tuple[int, ...], batch: tuple[int, ...]) -> None:
    """One matrix for each head or expert; onnxruntime multiplies such only with one scale for all."""
    if len(shape) == 3 and batch != (1,):
        shape = (3, 5, 4)
    values = {"w": normal(*batch, 4, 6), "b": normal(6, seed=1)}
    rank = max(len(shape), len(batch) + 2)
    axes = ",".join(f"d{axis}" for axis in range(rank))
    sizes = ",".join(map(str, shape))
    model = parse("[L] s = MatMul(x, w) y = Add(s, b)", f"float[{sizes}] x", f"float[{axes}] y", values)
    feeds = [{"x": normal(*shape, seed=seed)} for seed in range(5, 11)]
    result = amct_onnx.quantize(model, feeds, trial=False)
    alone = amct_onnx.quantize(model, feeds, formats=["qdq"], trial=False)
    assert (len(result.record.layers["L"].scale_w), len(alone.record.layers["L"].scale_w)) == (1, 1)
    (want,) = run(model, feeds[0])
    fake = result.models[OutputForm.FAKE_QUANT].to_proto()
    for proto in (fake, result.model("qdq"), alone.model("qdq")):
        assert noise_db(want, run(proto, feeds[0])[0]) > 30
    session = open_simulator(result.models[OutputForm.ASCEND].to_proto())
    np.testing.assert_allclose(fetch(session, ["y"], feeds[0])[0], run(fake, feeds[0], optimized=False)[0], rtol=1e-6)
    balanced = amct_onnx.quantize(model, feeds, dmq=0.5, trial=False)
    assert len(balanced.record.layers["L"].tensor_balance_factor) == 4
    assert noise_db(want, run(balanced.model("qdq"), feeds[0])[0]) > 30
