"""Single inputs of Add and MaxPool, quantized in every form."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import ModelProto

from amct_onnx.passes.input_sites import InputSite, InputSites
from amct_onnx.passes.insert_qdq import QdqTarget
from amct_onnx.passes.locate import locate_layers
from amct_onnx.passes.quant_params import LayerQuant, TensorQuant
from amct_onnx.rewrite import OutputForm, prepare, rewrite
from amct_onnx.runtime import fetch
from amct_onnx.runtime.simulator import open_simulator
from tests.models import imported, initializers, normal, parse, run, summary

HALF = TensorQuant(0.5, -10)
SUM = parse("[add] y = Add(a, b)", "float[4] a, float[4] b", "float[4] y")
POOLED = parse(
    "[conv] c = Conv(x, w)  [pool] p = MaxPool <kernel_shape = [2, 2]> (x)  y = Add(c, p)",
    "float[1,1,3,3] x",
    "float[1,1,2,2] y",
    {"w": np.array([[[[1, 2], [-1, 3]]]], np.float32)},
)
CONV = {"conv": LayerQuant(HALF, np.array([0.25], np.float32))}


def made(
    model: ModelProto,
    form: OutputForm,
    inputs: dict[str, TensorQuant],
    layers: dict[str, LayerQuant] | None = None,
    **options,
) -> ModelProto:
    return rewrite(prepare(model, None), layers or {}, form, inputs=inputs, **options)[0].to_proto()


def attributes(proto: ModelProto, name: str) -> dict[str, object]:
    (node,) = [node for node in proto.graph.node if node.name == name]
    return {entry.name: entry.s.decode() if entry.s else entry.f for entry in node.attribute}


def test_the_ascend_form() -> None:
    proto = made(SUM, OutputForm.ASCEND, {"add:1": HALF})
    assert summary(proto.graph.node) == [
        "add_1.quant: AscendQuant(b) -> add_1.quant.output0",
        "add_1.anti_quant: AscendAntiQuant(add_1.quant.output0) -> add_1.anti_quant.output0",
        "add: Add(a, add_1.anti_quant.output0) -> y",
    ]
    assert attributes(proto, "add_1.quant") == {"scale": 2.0, "offset": -10.0, "dst_type": "INT8"}
    assert attributes(proto, "add_1.anti_quant") == {"scale": 0.5, "offset": -10.0, "dst_type": "INT8"}
    assert {node.domain for node in proto.graph.node} == {""}


def test_numbers_by_hand() -> None:
    """b = [0.3, 1.25, 100, -100] over 0.5 rounds (half to even) to [1, 2, 200, -200], less 10 [-9, -8, 190, -210].

    Clipped to [-128, 127], plus 10, times 0.5: [0.5, 1, 68.5, -59].
    """
    b = np.array([0.3, 1.25, 100, -100], np.float32)
    feed = {"a": np.zeros(4, np.float32), "b": b}
    deploy = made(SUM, OutputForm.ASCEND, {"add:1": HALF})
    expected = [0.5, 1, 68.5, -59]
    np.testing.assert_array_equal(fetch(open_simulator(deploy), ["y"], feed)[0], expected)
    for form in (OutputForm.FAKE_QUANT, OutputForm.QDQ):
        np.testing.assert_array_equal(run(made(SUM, form, {"add:1": HALF}), feed)[0], expected)


def test_the_fake_quant_form_multiplies_by_the_scale() -> None:
    proto = made(SUM, OutputForm.FAKE_QUANT, {"add:0": HALF})
    assert [node.op_type for node in proto.graph.node] == ["Mul", "Round", "Add", "Clip", "Sub", "Mul", "Add"]
    assert proto.graph.node[-2].name == "add_0.fakeantiquant.mul"
    assert initializers(proto)["add_0.fakeantiquant.scale"] == np.float32(0.5)


def test_both_inputs_of_one_add_read_one_tensor() -> None:
    double = parse("[add] y = Add(a, a)", "float[4] a", "float[4] y")
    proto = made(double, OutputForm.ASCEND, {"add:0": HALF, "add:1": HALF})
    assert summary(proto.graph.node) == [
        "add_0.quant: AscendQuant(a) -> add_0.quant.output0",
        "add_0.anti_quant: AscendAntiQuant(add_0.quant.output0) -> add_0.anti_quant.output0",
        "add_1.anti_quant: AscendAntiQuant(add_0.quant.output0) -> add_1.anti_quant.output0",
        "add: Add(add_0.anti_quant.output0, add_1.anti_quant.output0) -> y",
    ]
    other = made(double, OutputForm.ASCEND, {"add:0": HALF, "add:1": TensorQuant(0.25, 0)})
    assert [node.op_type for node in other.graph.node].count("AscendQuant") == 2


def test_a_layers_quant_is_shared_when_equal() -> None:
    proto = made(POOLED, OutputForm.ASCEND, {"pool:0": HALF}, CONV)
    lines = summary(proto.graph.node)
    assert "conv.quant: AscendQuant(x) -> conv.quant.output0" in lines
    assert "pool_0.anti_quant: AscendAntiQuant(conv.quant.output0) -> pool_0.anti_quant.output0" in lines
    assert sum("AscendQuant(" in line for line in lines) == 1
    other = made(POOLED, OutputForm.ASCEND, {"pool:0": TensorQuant(0.5, 0)}, CONV)
    assert sum("AscendQuant(" in line for line in summary(other.graph.node)) == 2


@pytest.mark.parametrize("offset", [-10, 0, 127, -128])
def test_forms_agree_beside_a_layer(offset: int) -> None:
    inputs = {"pool:0": TensorQuant(0.037, offset)}
    x = normal(1, 1, 3, 3) * 5
    outputs = {
        "fake": run(made(POOLED, OutputForm.FAKE_QUANT, inputs, CONV), {"x": x}, optimized=False)[0],
        "simulated": fetch(open_simulator(made(POOLED, OutputForm.ASCEND, inputs, CONV)), ["y"], {"x": x})[0],
    }
    np.testing.assert_array_equal(outputs["fake"], outputs["simulated"])


def test_behind_a_layer_the_quant_reads_its_dequantized_result() -> None:
    model = parse(
        "[conv] c = Conv(x, w)  [pool] y = MaxPool <kernel_shape = [2, 2]> (c)",
        "float[1,1,3,3] x",
        "float[1,1,1,1] y",
        {"w": np.ones((1, 1, 2, 2), np.float32)},
    )
    lines = summary(made(model, OutputForm.ASCEND, {"pool:0": HALF}, CONV).graph.node)
    assert "pool_0.quant: AscendQuant(conv.dequant.output0) -> pool_0.quant.output0" in lines


def test_a_pair_for_that_reader_alone() -> None:
    model = parse("[add] y = Add(a, b)  z = Exp(b)", "float[4] a, float[4] b", "float[4] y, float[4] z")
    lines = summary(made(model, OutputForm.QDQ, {"add:1": HALF}).graph.node)
    assert "add: Add(a, add_1.dequantized) -> y" in lines
    assert any(line.endswith("Exp(b) -> z") for line in lines)


def test_no_second_pair_where_one_is() -> None:
    pairs = {name: TensorQuant(0.25, 0) for name in ("a", "b", "y")}
    lines = summary(made(SUM, OutputForm.QDQ, {"add:1": HALF}, pairs=pairs).graph.node)
    assert not any("add_1" in line for line in lines)
    assert "add: Add(a.dequantized, b.dequantized) -> y.float" in lines


def test_a_float_reader_beside_a_layer_gets_its_own_pair() -> None:
    lines = summary(made(POOLED, OutputForm.QDQ, {"pool:0": HALF}, CONV).graph.node)
    assert "pool: MaxPool(pool_0.dequantized) -> p" in lines
    assert "pool_0.quantize: QuantizeLinear(x, pool_0.scale, pool_0.zero_point) -> pool_0.quantized" in lines


def test_the_records_scale_goes_before_the_tensors_files() -> None:
    pairs = {name: TensorQuant(0.25, 0) for name in ("a", "b", "y")}
    arrays = initializers(made(SUM, OutputForm.QDQ, {"add:1": HALF}, pairs=pairs))
    assert (arrays["a.scale"], arrays["b.scale"]) == (np.float32(0.25), np.float32(0.5))


def test_tensorrt_takes_signed_integers() -> None:
    proto = made(SUM, OutputForm.QDQ, {"add:1": TensorQuant(0.5, 0)}, target=QdqTarget.TENSORRT)
    assert initializers(proto)["add_1.zero_point"].dtype == np.int8


IN_BODY = """
    y = If (t) <
        then_branch = g1 () => (float[4] u) { [inner] u = Add(a, a) },
        else_branch = g2 () => (float[4] v) { v = Identity(a) }
    >
"""


@pytest.mark.parametrize(
    ("nodes", "index", "reason"),
    [
        ("[n] y = Mul(a, b)", 0, "single inputs are quantized of Add and MaxPool only, not of a Mul"),
        ("[n] y = Add(a, b)", 2, "this Add has 2 inputs, counted from 0"),
        ("[n] y = Add(a, k)", 1, "this input is a constant"),
        ("i = Cast <to = 11> (a)  [n] j = Add(i, i)  y = Cast <to = 1> (j)", 0, "this input is float64, not float32"),
        ("m = MatMul(a, w)  [n] y = Add(m, k)", 0, "this Add is the bias of the quantized layer 'MatMul_0'"),
        ("[other] y = Add(a, b)", 0, "the model has no such node"),
    ],
)
def test_inputs_that_cannot_be_quantized(nodes: str, index: int, reason: str) -> None:
    weights = {"k": normal(4), "w": normal(4, 4)}
    model = parse(nodes, "float[4] a, float[4] b", "float[4] y", weights)
    prepared = prepare(model, None).model
    if "Cast" in nodes:
        next(node for node in prepared.graph.nodes if node.op == "Cast").outputs[0].dtype = np.dtype(np.float64)
    found = InputSites(prepared, locate_layers(prepared).layers).obstacle("n", index)
    assert found is not None
    assert found.startswith(reason)


def test_a_body_stays_float() -> None:
    model = imported(parse(IN_BODY, "bool t, float[4] a", "float[4] y"))
    assert InputSites(model, ()).obstacle("inner", 0) == "it lies inside a control-flow body"


def test_the_bias_add_of_a_float_layer_is_no_obstacle() -> None:
    model = imported(parse("m = MatMul(a, w)  [n] y = Add(m, k)", weights={"k": normal(3), "w": normal(3, 3)}))
    assert isinstance(InputSites(model, ()).site("n", 0), InputSite)
