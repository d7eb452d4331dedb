"""A Mul or Add of one number between two pairs: gone, and no number changes by more than one rounding."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import ModelProto, TensorProto, helper

from amct_onnx.passes.insert_qdq import QdqTarget
from amct_onnx.passes.quant_params import LayerQuant, TensorQuant
from amct_onnx.rewrite import OutputForm, prepare, rewrite
from tests.models import Array, initializers, normal, parse, run
from tests.passes.fusing import operators

IMAGE, ANY = "float[1,4,5,5] x", "float[p,q,r,s] y"
CONVS = {name: normal(4, 4, 1, 1, seed=seed) for seed, name in enumerate("abc")}
QUANT = TensorQuant(0.05, -3)
NODES = "[L] s = Conv(x, a) r = Sigmoid(s) m = {} [K] u = Conv(x, c) n = Add(m, u) [M] y = Conv(n, b)"
PAIRS = {"s": QUANT, "r": TensorQuant(1 / 255, -128), "k": TensorQuant(0.3 / 255, -128), "u": TensorQuant(0.02, 0)}


def made(
    mul: str,
    k: Array,
    pair: TensorQuant,
    *,
    outputs: str = ANY,
    target: QdqTarget = QdqTarget.ONNXRUNTIME,
    more: str = "",
    op: str = "Sigmoid",
    k_pair: TensorQuant = PAIRS["k"],
) -> ModelProto:
    nodes = NODES.format(mul).replace("Sigmoid", op) + more
    quants = {name: LayerQuant(QUANT, np.array([0.02], np.float32)) for name in "LKM"}
    model = parse(nodes, IMAGE, outputs, CONVS | {"k": k})
    pairs = {**PAIRS, "m": pair, "k": k_pair}
    return rewrite(prepare(model, None), quants, OutputForm.QDQ, pairs=pairs, target=target)[0].to_proto()


def ends(proto: ModelProto) -> tuple[Array, Array]:
    """What is read behind the arithmetic, and the exact values before it."""
    proto.graph.output.extend(helper.make_tensor_value_info(n, TensorProto.FLOAT, None) for n in ("m.dequantized", "r"))
    _, got, r = run(proto, {"x": normal(1, 4, 5, 5, seed=7)}, optimized=False)
    return got, r


@pytest.mark.parametrize("mul", ["Mul(r, k)", "Mul(k, r)"])
@pytest.mark.parametrize("shape", [(), (1,)])
def test_the_integers_stay(mul: str, shape: tuple[int, ...]) -> None:
    pair = TensorQuant(float(np.float32(0.3 / 200)), -100)
    proto = made(mul, np.full(shape, 0.3, np.float32), pair)
    assert "Mul" not in operators(proto)
    arrays = initializers(proto)
    assert arrays["r.scale"] == pytest.approx(pair.scale / 0.3, rel=1e-6)
    assert arrays["m.scale"] == np.float32(pair.scale)
    got, r = ends(proto)
    integers = np.clip(np.rint(r * np.float32(0.3) / np.float32(pair.scale)) - 100, -128, 127)
    assert np.mean(np.abs(got - (integers + 100) * np.float32(pair.scale)) < 1e-6) > 0.97
    np.testing.assert_allclose(got, np.clip(0.3 * r, pair.low, pair.high), atol=pair.scale * 0.501)


@pytest.mark.parametrize(("add", "number"), [("Add(r, k)", -0.05), ("Add(k, r)", 0.1)])
def test_whole_steps_are_added_to_the_zero_point(add: str, number: float) -> None:
    step = float(np.float32(abs(number) / 20))
    pair = TensorQuant(step, -100)
    k_pair = TensorQuant(abs(number) / 255, -128 if number > 0 else 127)
    proto = made(add, np.full(1, number, np.float32), pair, k_pair=k_pair)
    assert operators(proto).count("Add") == 1
    arrays = initializers(proto)
    assert arrays["r.zero_point"] == 28 + (20 if number > 0 else -20)
    got, r = ends(proto)
    np.testing.assert_allclose(got, np.clip(r + number, pair.low, pair.high), atol=step * 0.501)


def test_several_in_a_row_become_one() -> None:
    """The smallest case: a factor, then a shift, then a factor; each kept its own pair, so none is merged before."""
    nodes = NODES.format("Mul(g, third)").replace("m =", "f = Mul(r, half) g = Add(f, quarter) m =")
    numbers = {"half": 0.5, "quarter": 0.25, "third": 1 / 3}
    constants = {name: np.array(value, np.float32) for name, value in numbers.items()}
    steps = {"r": 1 / 255, "f": 0.5 / 250, "g": 0.25 / 80, "m": 0.25 / 240, "u": 0.02}
    pairs = {name: TensorQuant(float(np.float32(step)), -128) for name, step in steps.items()} | {"s": QUANT}
    pairs |= {name: TensorQuant(float(np.float32(value / 255)), -128) for name, value in numbers.items()}
    quants = {name: LayerQuant(QUANT, np.array([0.02], np.float32)) for name in "LKM"}
    model = parse(nodes, IMAGE, ANY, CONVS | constants)
    proto = rewrite(prepare(model, None), quants, OutputForm.QDQ, pairs=pairs)[0].to_proto()
    assert "Mul" not in operators(proto)
    got, r = ends(proto)
    want = (0.5 * r + 0.25) / 3
    # The shift is 80 steps of g as well as of m.
    np.testing.assert_allclose(got, np.clip(want, pairs["m"].low, pairs["m"].high), atol=pairs["m"].scale * 0.501)


def test_a_relu_stays_when_the_joined_quantizer_begins_below_zero() -> None:
    """The pair behind the Relu enforces it; the one behind the Mul, which takes its place, does not."""
    k, pair = np.array(0.3, np.float32), TensorQuant(0.002, -100)
    proto = made("Mul(r, k)", k, pair, op="Relu")
    assert ("Relu" in operators(proto), "Mul" in operators(proto)) == (True, False)
    got, r = ends(proto)
    assert got.min() == 0.0
    np.testing.assert_allclose(got, np.clip(0.3 * r, pair.low, pair.high), atol=pair.scale * 0.501)
    assert "Relu" not in operators(made("Mul(r, k)", k, TensorQuant(0.002, -128), op="Relu"))


def test_shifts_that_are_no_whole_steps_or_leave_the_zero_points_stay() -> None:
    for step, offset in ((0.05 / 20.5, -100), (0.05 / 200, 0)):
        proto = made("Add(r, k)", np.array(0.05, np.float32), TensorQuant(step, offset))
        assert operators(proto).count("Add") == 2


@pytest.mark.parametrize(
    "k", [np.full((4, 1, 1), 0.3, np.float32), np.array(-0.3, np.float32), np.array(0, np.float32)]
)
def test_other_constants_stay(k: Array) -> None:
    assert "Mul" in operators(made("Mul(r, k)", k, TensorQuant(0.002, 0)))


def test_another_reader_between_stays() -> None:
    k, pair = np.array(0.3, np.float32), TensorQuant(0.002, -128)
    assert "Mul" in operators(made("Mul(r, k)", k, pair, outputs=ANY + ", float[e,f,g,h] z", more=" z = Neg(r)"))


def test_tensorrt_keeps_one_scale_per_pair() -> None:
    nodes = NODES.format("Mul(r, k)")
    quants = {name: LayerQuant(TensorQuant(0.05, 0), np.array([0.02], np.float32)) for name in "LKM"}
    pairs = {name: TensorQuant(0.01, 0) for name in "srmku"}
    model = parse(nodes, IMAGE, ANY, CONVS | {"k": np.array(0.3, np.float32)})
    proto, _ = rewrite(prepare(model, None), quants, OutputForm.QDQ, pairs=pairs, target=QdqTarget.TENSORRT)
    assert "Mul" in operators(proto.to_proto())


@pytest.mark.parametrize(("op", "number"), [("Mul", 2.0), ("Add", 0.1)])
def test_a_pair_of_the_source_keeps_its_range(op: str, number: float) -> None:
    """It cuts off at 0.127 whatever follows; joined it would let through ten times as much."""
    constants = {"s": np.float32(0.001), "z": np.int8(0), "k": np.float32(number), "t": np.float32(0.05)}
    nodes = f"q = QuantizeLinear(x, s, z) d = DequantizeLinear(q, s, z) m = {op}(d, k)"
    nodes += " e = QuantizeLinear(m, t, z) y = DequantizeLinear(e, t, z)"
    source = parse(nodes, "float[64] x", "float[64] y", {name: np.asarray(a) for name, a in constants.items()})
    proto = rewrite(prepare(source, None), {}, OutputForm.QDQ)[0].to_proto()
    x = normal(64)
    first = np.clip(np.rint(x / constants["s"]), -128, 127) * constants["s"]
    behind = first * constants["k"] if op == "Mul" else first + constants["k"]
    want = np.clip(np.rint(behind / constants["t"]), -128, 127) * constants["t"]
    np.testing.assert_allclose(run(proto, {"x": x}, optimized=False)[0], want, rtol=1e-6)


def test_an_add_of_another_domain_is_not_onnx_add() -> None:
    """It stands between two pairs all the same, and what it computes nobody knows."""
    model = parse(
        "[L] s = Conv(x, a) m = custom.Add(s, k) [M] y = Conv<pads = [1, 1, 1, 1]>(m, b)",
        IMAGE,
        ANY,
        CONVS | {"k": np.array(0.25, np.float32)},
        domains='"custom": 1',
    )
    quants = {name: LayerQuant(TensorQuant(0.05, -3), np.array([0.02], np.float32)) for name in "LM"}
    proto = rewrite(prepare(model, None), quants, OutputForm.QDQ, pairs={"s": QUANT})[0].to_proto()
    assert "Add" in operators(proto)
