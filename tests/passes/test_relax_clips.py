"""A Clip in the deploy and fake-quant forms becomes a Relu exactly where the quantizer behind it does the rest."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import ModelProto

from amct_onnx.passes.quant_params import LayerQuant, TensorQuant
from amct_onnx.rewrite import OutputForm, prepare, rewrite
from tests.models import normal, parse, run
from tests.passes.fusing import data, operators

IMAGE, ANY = "float[1,2,5,5] x", "float[a,b,c,d] y"
WEIGHTS = {
    "w": 4 * normal(3, 2, 1, 1),
    "w2": normal(2, 3, 1, 1, seed=1),
    "zero": np.array(0, np.float32),
    "low": np.array(-1, np.float32),
    "six": np.array(6, np.float32),
}
RELU6 = "[L] s = Conv(x, w) [clip] t = Clip(s, zero, six) [M] y = Conv(t, w2)"


def made(
    nodes: str, behind: TensorQuant, form: OutputForm = OutputForm.ASCEND, outputs: str = ANY, **more: int
) -> ModelProto:
    layers = {"L": TensorQuant(0.03, 3), "M": behind} if "[M]" in nodes else {"L": behind}
    quants = {name: LayerQuant(quant, np.array([0.05], np.float32)) for name, quant in layers.items()}
    model = parse(nodes, IMAGE, outputs, WEIGHTS, **more)
    return rewrite(prepare(model, None), quants, form)[0].to_proto()


@pytest.mark.parametrize(
    ("scale", "offset", "relaxes"),
    [
        (6 / 255, -128, True),
        (6 / 255 * 0.99, -128, True),
        (6 / 255 * 1.01, -128, False),
        (6 / 127, 0, True),
        (6 / 126, 0, False),
        (0.02, 0, True),
    ],
)
def test_the_bound_decides(scale: float, offset: int, relaxes: bool) -> None:
    quant = TensorQuant(float(np.float32(scale)), offset)
    assert ("Relu" in operators(made(RELU6, quant))) is relaxes
    assert "Relu" not in operators(made(RELU6.replace("[M] y = Conv(t, w2)", "y = Neg(t)"), quant))


@pytest.mark.parametrize("offset", [-128, -100, 0])
def test_the_same_numbers(offset: int) -> None:
    quant = TensorQuant(float(np.float32(6 / (127 - offset))), offset)
    proto = made(RELU6, quant, OutputForm.FAKE_QUANT)
    assert "Relu" in operators(proto)
    clipped = made(
        RELU6.replace("[clip] t = Clip(s, zero, six)", "u = Identity(s) [clip] t = Clip(u, zero, six)"),
        quant,
        OutputForm.FAKE_QUANT,
    )
    assert "Relu" not in operators(clipped)
    feed = {"x": 3 * data(1, 2, 5, 5)["x"]}
    np.testing.assert_array_equal(run(proto, feed)[0], run(clipped, feed)[0])


@pytest.mark.parametrize(
    ("nodes", "outputs"),
    [
        (RELU6.replace("zero", "low"), ANY),
        (RELU6 + " z = Neg(s)", ANY + ", float[e,f,g,h] z"),
        (RELU6 + " z = Neg(t)", ANY + ", float[e,f,g,h] z"),
        (RELU6, ANY + ", float[e,f,g,h] t"),
        (RELU6, ANY + ", float[e,f,g,h] s"),
    ],
)
def test_other_bounds_and_other_readers_stay(nodes: str, outputs: str) -> None:
    assert "Relu" not in operators(made(nodes, TensorQuant(0.01, -128), outputs=outputs))


def test_a_clip_with_attributes_keeps_its_name() -> None:
    nodes = RELU6.replace("Clip(s, zero, six)", "Clip<min = 0.0, max = 6.0>(s)")
    proto = made(nodes, TensorQuant(0.01, -128), opset=10)
    assert [node.name for node in proto.graph.node if node.op_type == "Relu"] == ["clip"]
