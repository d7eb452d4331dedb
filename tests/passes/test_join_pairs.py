"""A Mul by one positive number between two pairs: gone, and no number changes by more than one rounding."""

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
CONVS = {name: normal(4, 4, 1, 1, seed=seed) for seed, name in enumerate("ab")} | {"e": normal(4, 1, 1, seed=5)}
QUANT = TensorQuant(0.05, -3)
NODES = "[L] s = Conv(x, a) r = Sigmoid(s) m = {} n = Add(m, e) [M] y = Conv<pads = [1, 1, 1, 1]>(n, b)"
PAIRS = {"s": QUANT, "r": TensorQuant(1 / 255, -128), "k": TensorQuant(0.3 / 255, -128), "e": TensorQuant(0.02, 0)}


def made(
    mul: str,
    k: Array,
    pair: TensorQuant,
    *,
    outputs: str = ANY,
    target: QdqTarget = QdqTarget.ONNXRUNTIME,
    more: str = "",
) -> ModelProto:
    nodes = NODES.format(mul) + more
    quants = {name: LayerQuant(QUANT, np.array([0.02], np.float32)) for name in "LM"}
    model = parse(nodes, IMAGE, outputs, CONVS | {"k": k})
    pairs = {**PAIRS, "m": pair}
    return rewrite(prepare(model, None), quants, OutputForm.QDQ, pairs=pairs, target=target)[0].to_proto()


@pytest.mark.parametrize("mul", ["Mul(r, k)", "Mul(k, r)"])
@pytest.mark.parametrize("shape", [(), (1,)])
def test_the_integers_stay(mul: str, shape: tuple[int, ...]) -> None:
    pair = TensorQuant(float(np.float32(0.3 / 200)), -100)
    proto = made(mul, np.full(shape, 0.3, np.float32), pair)
    assert "Mul" not in operators(proto)
    arrays = initializers(proto)
    assert arrays["r.scale"] == pytest.approx(pair.scale / 0.3, rel=1e-6)
    assert arrays["m.scale"] == np.float32(pair.scale)
    x = {"x": normal(1, 4, 5, 5, seed=7)}
    proto.graph.output.extend(helper.make_tensor_value_info(n, TensorProto.FLOAT, None) for n in ("m.dequantized", "r"))
    _, got, r = run(proto, x, optimized=False)
    integers = np.clip(np.rint(r * np.float32(0.3) / np.float32(pair.scale)) - 100, -128, 127)
    assert np.mean(np.abs(got - (integers + 100) * np.float32(pair.scale)) < 1e-6) > 0.97
    np.testing.assert_allclose(got, np.clip(0.3 * r, pair.low, pair.high), atol=pair.scale * 0.501)


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
    quants = {name: LayerQuant(TensorQuant(0.05, 0), np.array([0.02], np.float32)) for name in "LM"}
    pairs = {name: TensorQuant(0.01, 0) for name in "srmke"}
    model = parse(nodes, IMAGE, ANY, CONVS | {"k": np.array(0.3, np.float32)})
    proto, _ = rewrite(prepare(model, None), quants, OutputForm.QDQ, pairs=pairs, target=QdqTarget.TENSORRT)
    assert "Mul" in operators(proto.to_proto())
