"""What several nodes share: weights, biases, embedding tables and activations, in every form."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np
import pytest
from onnx import ModelProto, TensorProto

import amct_onnx
from amct_onnx.record import LayerRecord
from amct_onnx.runtime.simulator import open_simulator
from tests.models import Array, normal, parse, run

W, B = normal(6, 6, seed=1), normal(6, seed=2)
DATA = {"x": normal(4, 6, seed=3)}
IN, OUT = "float[4,6] x", "float[4,6] y"
CHAIN = "[a] p = MatMul(x, w) [r] q = Relu(p) [b] y = MatMul(q, w)"


@dataclass(frozen=True)
class Case:
    """A model that shares something.

    Attributes:
        nodes, inputs, outputs, weights: the model.
        layers: the layers that are quantized.
        integers: element types of the weights and biases of its deploy model.
        feed: what to run it on.
        exact: outputs that no quantized layer has to do with.
        skip: layers to leave float.
        edit: factors for scale_w and scale_d of layer b.
    """

    nodes: str
    layers: str
    integers: str
    inputs: str = IN
    outputs: str = OUT
    weights: dict[str, Array] = field(default_factory=lambda: {"w": W})
    feed: dict[str, Array] = field(default_factory=lambda: DATA)
    exact: tuple[str, ...] = ()
    skip: tuple[str, ...] = ()
    edit: tuple[float, float] = (1.0, 1.0)


IMAGE = {"x": normal(1, 6, 8, 8, seed=4)}
TABLE = {"e": normal(50, 6, seed=5), "s": np.array([3, 6])}
IDS = {"i": np.array([[1, 2, 49]])}
EMBEDDING = {"inputs": "int64[1,3] i", "outputs": "float[] y, float[1,3,6] g", "weights": TABLE, "feed": IDS}
BODY = """[a] h = MatMul(x, w) [branch] y = If(c) <
    then_branch = one () => (float[4,6] t) { [b] t = MatMul(h, w) },
    else_branch = two () => (float[4,6] e) { e = Identity(h) }>"""

CASES = {
    "weight, one scale": Case(CHAIN, "ab", "8"),
    "weight, two scales": Case(CHAIN, "ab", "88", edit=(1.5, 1.0)),
    "weight, one layer float": Case(CHAIN, "a", "8f", skip=("b",)),
    "weight, both ways round": Case("[a] p = MatMul(x, w) [b] y = Gemm<transB = 1>(p, w)", "ab", "88"),
    "weight that leaves the model": Case(
        "[a] y = MatMul(x, w)", "a", "8f", outputs=f"{OUT}, float[6,6] w", exact=("w",)
    ),
    "weight that something else reads": Case(
        "[a] y = MatMul(x, w) z = Sin(w)", "a", "8f", outputs=f"{OUT}, float[6,6] z", exact=("z",)
    ),
    "weight that is added as well": Case(
        "[a] p = MatMul(x, w) y = Add(p, w)",
        "a",
        "8f",
        feed={"x": normal(6, 6)},
        inputs="float[6,6] x",
        outputs="float[6,6] y",
    ),
    "weight that is the bias as well": Case(
        "[a] p = MatMul(x, w) y = Add(p, w)",
        "a",
        "38",
        weights={"w": normal(1, 6)},
        inputs="float[4,1] x",
        feed={"x": normal(4, 1)},
    ),
    "weight, in a body as well": Case(BODY, "ab", "8", inputs=f"{IN}, bool c", feed={**DATA, "c": np.array(True)}),
    "weight of two convolutions": Case(
        "[a] p = Conv(x, w) [b] y = Conv<dilations = [2, 2]>(x, w)",
        "ab",
        "8",
        "float[1,6,8,8] x",
        "float[1,6,6,6] p, float[1,6,4,4] y",
        {"w": normal(6, 6, 3, 3)},
        IMAGE,
    ),
    "weight, other channels": Case(
        "[a] p = Conv(x, w) [b] y = ConvTranspose(p, w)",
        "ab",
        "88",
        "float[1,6,8,8] x",
        "float[1,6,8,8] y",
        {"w": normal(6, 6, 1, 1)},
        IMAGE,
    ),
    "bias of Gemms": Case(
        "[a] p = Gemm(x, w, c) [r] q = Relu(p) [b] y = Gemm(q, v, c)",
        "ab",
        "3388",
        weights={"w": W, "v": 3 * W, "c": B},
    ),
    "bias, one layer float": Case(
        "[a] p = Gemm(x, w, c) [r] q = Relu(p) [b] y = Gemm(q, v, c)",
        "b",
        "38ff",
        weights={"w": W, "v": 3 * W, "c": B},
        skip=("a",),
    ),
    "bias of MatMuls, read elsewhere": Case(
        "[a] p = MatMul(x, w) p1 = Add(p, c) [r] q = Relu(p1) [b] s = MatMul(q, v) y = Add(c, s) z = Sin(c)",
        "ab",
        "3388f",
        outputs=f"{OUT}, float[6] z",
        weights={"w": W, "v": 3 * W, "c": B},
        exact=("z",),
    ),
    "bias of convolutions": Case(
        "[a] p = Conv(x, w, c) [r] q = Relu(p) [b] y = Conv(q, v, c)",
        "ab",
        "3388",
        "float[1,6,8,8] x",
        "float[1,6,8,8] y",
        {"w": normal(6, 6, 1, 1), "v": normal(6, 6, 1, 1, seed=8), "c": B},
        IMAGE,
    ),
    "table and MatMul": Case(
        "t = Transpose(e) g = Gather(e, i) h = Tanh(g) [a] y = MatMul(h, t)", "a", "8f", exact=("g",), **EMBEDDING
    ),
    "table and MatMul, behind an Identity": Case(
        "k = Identity(e) g = Gather(k, i) h = Tanh(g) t = Transpose<perm = [1, 0]>(e) [a] y = MatMul(h, t)",
        "a",
        "8f",
        exact=("g",),
        **EMBEDDING,
    ),
    "table and Gemm": Case(
        "g = Gather(e, i) h0 = Tanh(g) h = Reshape(h0, s) [a] y = Gemm<transB = 1>(h, e)",
        "a",
        "8f",
        exact=("g",),
        **EMBEDDING,
    ),
    "table on the left": Case(
        "g = Gather(e, i) h0 = Tanh(g) h1 = Reshape(h0, s) h = Transpose(h1) [a] y = MatMul(e, h)",
        "a",
        "8f",
        exact=("g",),
        **EMBEDDING,
    ),
    "activation that is C as well": Case("[a] y = Gemm(x, w, x)", "a", "8"),
    "activation that is added": Case("[a] p = MatMul(x, w) y = Add(p, x)", "a", "8"),
    "result added to itself": Case("[a] p = MatMul(x, w) q = Add(p, p) [b] y = MatMul(q, w)", "ab", "8"),
    "result times itself": Case("[a] p = MatMul(x, w) q = Mul(p, p) [b] y = MatMul(q, w)", "ab", "8"),
    "activation, two scales": Case(
        "[a] p = MatMul(x, w) [b] q = MatMul(x, v) y = Add(p, q)",
        "ab",
        "88",
        weights={"w": W, "v": W + 1},
        edit=(1.0, 1.3),
    ),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_every_form(case: Case) -> None:
    proto = parse(case.nodes, case.inputs, case.outputs, _read(case))
    result = amct_onnx.quantize(proto, [case.feed], skip=case.skip, trial=False)
    if case.edit != (1.0, 1.0):
        layers = {**result.record.layers, "b": _edited(result.record.layers["b"], *case.edit)}
        result = amct_onnx.apply(proto, replace(result.record, layers=layers), tensors=result.tensors)
    assert "".join(result.record.layers) == case.layers
    assert _integers(result.model("ascend")) == case.integers
    floats = dict(zip((info.name for info in proto.graph.output), run(proto, case.feed), strict=True))
    made: dict[str, Callable[[], list[Array]]] = {
        "ascend": lambda: open_simulator(result.model("ascend")).run(None, case.feed),
        "fake_quant": lambda: run(result.model("fake_quant"), case.feed, optimized=False),
        "qdq": lambda: run(result.model("qdq"), case.feed),
    }
    for form, compute in made.items():
        outputs = dict(zip(floats, compute(), strict=True))
        for name, exact in floats.items():
            if name in case.exact:
                np.testing.assert_array_equal(outputs[name], exact, err_msg=form)
            assert np.abs(outputs[name] - exact).max() < 0.06 * np.abs(exact).max(), (form, name)
    for simulated, faked in zip(made["ascend"](), made["fake_quant"](), strict=True):
        np.testing.assert_array_equal(simulated, faked)


def _read(case: Case) -> dict[str, Array]:
    """The weights that the model reads."""
    words = {word.strip("(),") for word in case.nodes.replace("(", " ").split()}
    return {name: values for name, values in case.weights.items() if name in words}


def _edited(entry: LayerRecord, weight: float, data: float) -> LayerRecord:
    scale_d = float(np.float32(data * (entry.scale_d or 0)))
    return replace(entry, scale_w=tuple(weight * scale for scale in entry.scale_w), scale_d=scale_d)


def _integers(deploy: ModelProto) -> str:
    """8, 3 and f for every int8, int32 and float initializer, sorted."""
    kinds = {TensorProto.INT8: "8", TensorProto.INT32: "3", TensorProto.FLOAT: "f"}
    return "".join(sorted(kinds[tensor.data_type] for tensor in deploy.graph.initializer if tensor.data_type in kinds))
