"""Models of float16, float64 and mixed types: quantized in float32, with an interface as it was."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from onnx import ModelProto, TensorProto, checker

import amct_onnx
from amct_onnx.rewrite import OutputForm, prepare
from amct_onnx.runtime import fetch
from amct_onnx.runtime.simulator import open_simulator
from tests.models import Array, normal, parse, run
from tests.passes.fusing import operators

HALF, DOUBLE = np.float16, np.float64
NODES = (
    "[L] s = Conv(x, a, p) n = BatchNormalization(s, p, p, p, q) r = Relu(n) [M] t = Conv(r, b) u = Add(t, r) "
    "g = GlobalAveragePool(u) f = Flatten(g) [N] y = Gemm(f, m, p)"
)
VALUES = {
    "a": normal(4, 3, 3, 3),
    "b": normal(4, 4, 1, 1, seed=1),
    "m": normal(4, 4, seed=2),
    "p": normal(4, seed=3),
    "q": np.full(4, 0.5, np.float32),
}


PRODUCTS = "[L] s = MatMul(x, m) r = Relu(s) [M] t = MatMul(r, m) u = Add(t, r) [N] y = Gemm(u, m, p)"
"""onnxruntime has no float64 convolution."""


def products(kind: type, name: str) -> ModelProto:
    return parse(PRODUCTS, f"{name}[n,4] x", f"{name}[n,4] y", {key: VALUES[key].astype(kind) for key in "mp"})


def rows(kind: type, count: int = 6) -> list[dict[str, Array]]:
    return [{"x": normal(5, 4, seed=seed).astype(kind)} for seed in range(10, 10 + count)]


def net(kind: type, name: str, nodes: str = NODES, outputs: str | None = None) -> ModelProto:
    values = {key: value.astype(kind) for key, value in VALUES.items()}
    return parse(nodes, f"{name}[n,3,8,8] x", outputs or f"{name}[n,4] y", values)


def feeds(kind: type, count: int = 6) -> list[dict[str, Array]]:
    return [{"x": normal(2, 3, 8, 8, seed=seed).astype(kind)} for seed in range(10, 10 + count)]


def noise_db(want: Array, got: Array) -> float:
    want, got = want.astype(np.float64), got.astype(np.float64)
    return float(10 * np.log10(np.square(want).sum() / np.square(want - got).sum()))


def quantized(model: ModelProto, data: Sequence[dict[str, Array]]) -> amct_onnx.CompressionResult:
    return amct_onnx.quantize(model, list(data), trial=False)


@pytest.mark.parametrize(
    ("kind", "name", "made"), [(HALF, "float16", (net, feeds)), (DOUBLE, "double", (products, rows))]
)
def test_every_form_runs_and_keeps_the_interface(kind: type, name: str, made: tuple[Any, Any]) -> None:
    model, data = made[0](kind, name), made[1](kind)
    result = quantized(model, data)
    assert set(result.record.layers) == {"L", "M", "N"}
    for form in (OutputForm.QDQ, OutputForm.FAKE_QUANT):
        proto = result.models[form].to_proto()
        checker.check_model(proto, full_check=True)
        (got,) = run(proto, data[0])
        # The float32 twin is the reference: float16 itself is what has more noise.
        (want,) = run(made[0](np.float32, "float"), {"x": data[0]["x"].astype(np.float32)})
        assert got.dtype == kind
        assert noise_db(want, got) > 25


@pytest.mark.parametrize(("kind", "name"), [(HALF, "float16"), (DOUBLE, "double")])
def test_the_plan_is_that_of_the_same_model_in_float32(kind: type, name: str) -> None:
    """Values that float16 holds exactly, so that both models compute with the same numbers."""
    rounded = {key: np.round(value * 8) / 8 for key, value in VALUES.items()}
    nodes = "[L] s = MatMul(x, m) r = Relu(s) [M] y = MatMul(r, m)"
    twins = [
        parse(nodes, f"{word}[n,4] x", f"{word}[n,4] y", {"m": rounded["m"].astype(real)})
        for real, word in ((kind, name), (np.float32, "float"))
    ]
    data = [{"x": np.round(feed["x"] * 4) / 4} for feed in rows(np.float32)]
    records = [quantized(twins[0], [{"x": feed["x"].astype(kind)} for feed in data]).record.layers]
    records.append(quantized(twins[1], data).record.layers)
    assert records[0] == records[1]


def test_inspect_knows_the_shapes() -> None:
    half, single = (amct_onnx.inspect(net(kind, name)) for kind, name in ((HALF, "float16"), (np.float32, "float")))
    assert [fact.input_shape for fact in half.facts] == [fact.input_shape for fact in single.facts]
    assert [fact.output_shape for fact in half.facts] == [fact.output_shape for fact in single.facts]
    assert [fact.multiply_adds for fact in half.facts] == [fact.multiply_adds for fact in single.facts]


def test_ascend_nodes_take_the_casts_in() -> None:
    model, data = net(HALF, "float16"), feeds(HALF)
    result = quantized(model, data)
    proto = result.models[OutputForm.ASCEND].to_proto()
    assert "Cast" not in operators(proto)
    kinds = {node.name: node.attribute[0].i for node in proto.graph.node if node.op_type == "AscendDequant"}
    assert kinds == {"L.dequant": 0, "M.dequant": 0, "N.dequant": 1}
    session = open_simulator(proto)
    (simulated,) = fetch(session, ["y"], data[0])
    (fake,) = run(result.models[OutputForm.FAKE_QUANT].to_proto(), data[0], optimized=False)
    assert simulated.dtype == fake.dtype == HALF
    np.testing.assert_array_equal(simulated, fake)


def test_a_tensor_read_outside_keeps_its_type() -> None:
    nodes = "[L] s = Conv(x, a) r = Relu(s) e = Softmax(r) [M] t = Conv(r, b) y = Add(t, e)"
    model, data = net(HALF, "float16", nodes, "float16[n,4,6,6] y, float16[n,4,6,6] s"), feeds(HALF)
    result = quantized(model, data)
    for form in (OutputForm.QDQ, OutputForm.FAKE_QUANT):
        proto = result.models[form].to_proto()
        checker.check_model(proto, full_check=True)
        y, s = run(proto, data[0])
        want_y, want_s = run(model, data[0])
        assert (y.dtype, s.dtype) == (HALF, HALF)
        assert noise_db(want_s, s) > 30
        assert noise_db(want_y, y) > 25


def test_a_region_without_a_layer_is_left_alone() -> None:
    nodes = "[L] s = Conv(x, a) h = Cast<to = 10>(s) k = Relu(h) l = Add(k, half) y = Cast<to = 1>(l)"
    model = parse(nodes, "float[n,3,8,8] x", "float[n,4,6,6] y", {"a": VALUES["a"], "half": np.array(0.5, np.float16)})
    prepared = prepare(model, None)
    assert dict(prepared.lifted) == {}
    assert operators(quantized(model, feeds(np.float32)).models[OutputForm.QDQ].to_proto()).count("Cast") == 2


def test_float16_layers_inside_a_float32_model() -> None:
    """Mixed precision: the Casts of the model stay where they are, and both kinds of layers are quantized."""
    nodes = "[L] s = Conv(x, a) h = Cast<to = 10>(s) [M] t = Conv(h, b) r = Relu(t) y = Cast<to = 1>(r)"
    values = {"a": VALUES["a"], "b": VALUES["b"].astype(HALF)}
    model = parse(nodes, "float[n,3,8,8] x", "float[n,4,6,6] y", values)
    data = feeds(np.float32)
    result = quantized(model, data)
    assert set(result.record.layers) == {"L", "M"}
    (want,), (got,) = run(model, data[0]), run(result.models[OutputForm.QDQ].to_proto(), data[0])
    assert noise_db(want, got) > 25


def test_a_weight_that_two_types_of_layers_would_share_is_not_touched_in_the_source() -> None:
    model = net(HALF, "float16")
    before = model.SerializeToString(deterministic=True)
    quantized(model, feeds(HALF))
    assert model.SerializeToString(deterministic=True) == before
    assert {entry.data_type for entry in model.graph.initializer} == {TensorProto.FLOAT16}
