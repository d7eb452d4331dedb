"""What the Ascend compiler will ask of a deploy model."""

from __future__ import annotations

import json
import struct

import numpy as np
import onnx
import pytest
from onnx import ModelProto, helper

from amct_onnx import check_deploy, quantize
from amct_onnx.cli import main
from tests.models import Array, normal, parse


def bits(*scales: float) -> Array:
    return np.array([struct.unpack("<I", struct.pack("<f", scale))[0] for scale in scales], np.uint64)


CONV = """
    [conv_quant] q = AscendQuant <scale = 2.0, offset = -3.0, dst_type = "INT8"> (x)
    [conv] a = Conv(q, w, b)
    [conv_dequant] y = AscendDequant <dtype = 0> (a, p)
"""
PRODUCT = """
    [fc_quant] q = AscendQuant <scale = 2.0, offset = 0.0, dst_type = "INT8"> (x)
    [fc] m = MatMul(q, w)
    [bias] a = Add(b, m)
    [fc_dequant] y = AscendDequant <dtype = 0> (a, p)
"""
ANTI = """
    [pool_0_quant] q = AscendQuant <scale = 2.0, offset = 0.0, dst_type = "INT8"> (x)
    [pool_0_anti_quant] f = AscendAntiQuant <scale = 0.5, offset = 0.0, dst_type = "INT8"> (q)
    [pool] y = MaxPool <kernel_shape = [1, 1]> (f)
"""
IMAGE = "float[1,17,1,1] x"
WEIGHTS = {"w": np.ones((2, 17, 1, 1), np.int8), "b": np.ones(2, np.int32), "p": bits(0.5, 0.25)}
MATRIX = {"w": np.ones((17, 2), np.int8), "b": np.ones(2, np.int32), "p": bits(0.5)}


def conv(nodes: str = CONV, inputs: str = IMAGE, *, opset: int = 17, domains: str = "", **weights: Array) -> ModelProto:
    return parse(nodes, inputs, "float[1,2,1,1] y", {**WEIGHTS, **weights}, opset=opset, domains=domains)


def found(model: ModelProto) -> list[tuple[str, str, bool]]:
    return [(finding.rule, finding.node, finding.stops) for finding in check_deploy(model)]


@pytest.mark.parametrize(
    "model",
    [
        conv(),
        conv(p=bits(0.5)),
        conv(CONV.replace("INT8", "INT16").replace("-3.0", "-300.0")),
        conv(CONV.replace("INT8", "INT8  ")),
        parse(PRODUCT, "float[1,17] x", "float[1,2] y", MATRIX),
    ],
)
def test_nothing_to_find(model: ModelProto) -> None:
    assert found(model) == []


@pytest.mark.parametrize(("opset", "legal"), [(7, False), (8, True), (22, True), (23, False)])
def test_operator_sets(opset: int, legal: bool) -> None:
    assert found(conv(opset=opset)) == ([] if legal else [("opset", "", True)])


@pytest.mark.parametrize(
    ("shape", "argument"),
    [
        ("N,17,1,1", '--input_shape="x:1,17,1,1"'),
        ("N,17,height,1", '--input_shape="x:1,17,height,1" (a number for each name or question mark)'),
    ],
)
def test_free_sizes(shape: str, argument: str) -> None:
    (finding,) = check_deploy(conv(inputs=f"float[{shape}] x"))
    assert (finding.rule, finding.node, finding.stops) == ("dynamic_shape", "x", False)
    assert finding.remedy == f"compile with {argument}"
    assert "cannot be used with int8" in finding.message


def test_free_sizes_of_two_inputs_and_of_weights_that_are_inputs_too() -> None:
    model = conv(CONV + "z = Relu(u)", "float[N,17,1,1] x, float[M,3] u, int8[k,17,1,1] w")
    (finding,) = check_deploy(model)
    assert (finding.node, finding.remedy) == ("x, u", 'compile with --input_shape="x:1,17,1,1;u:1,3"')


def test_an_input_of_unknown_rank() -> None:
    model = conv()
    model.graph.input[0].type.tensor_type.ClearField("shape")
    (finding,) = check_deploy(model)
    assert '--input_shape="x:?" (a number' in finding.remedy


@pytest.mark.parametrize(
    ("node", "domains", "message"),
    [
        ("[odd] z = custom.Thing(x)", '"custom": 1', "Thing is an operator of domain 'custom'"),
        ("[odd] z = AscendWeightQuant(x)", "", "AscendWeightQuant is no ONNX operator"),
    ],
)
def test_operators_that_are_not_onnx_s_own(node: str, domains: str, message: str) -> None:
    (finding,) = check_deploy(conv(CONV + node, domains=domains))
    assert (finding.rule, finding.node, finding.stops) == ("operator", "odd", True)
    assert finding.message.startswith(message)


def test_control_flow() -> None:
    branches = "then_branch = g1 () => (float[1] u) { u = Relu(s) }, else_branch = g2 () => (float[1] v) { v = Abs(s) }"
    model = conv(f"{CONV} [branch] z = If (t) <{branches}>", f"{IMAGE}, bool t, float[1] s")
    assert found(model) == [("control_flow", "branch", False)]


@pytest.mark.parametrize(("channels", "expected"), [(16, [("few_channels", "conv", False)]), (17, [])])
def test_few_channels(channels: int, expected: list[object]) -> None:
    assert found(conv(inputs=f"float[1,{channels},1,1] x", w=np.ones((2, channels, 1, 1), np.int8))) == expected


def test_packed_weights_have_twice_the_channels() -> None:
    model = conv(inputs="float[1,18,1,1] x", w=np.ones((2, 9, 1, 1), np.int8))
    assert found(model) == [("few_channels", "conv", False)]
    helper.set_model_props(model, {"amct_onnx.int4_weights": '["conv"]'})
    assert found(model) == []


@pytest.mark.parametrize(
    ("old", "new", "rule", "message"),
    [
        ("scale = 2.0, ", "", "attribute", "attribute scale is missing; the compiler takes 0.0 instead"),
        ("scale = 2.0", "scale = 2", "attribute", "attribute scale is 2, not of type FLOAT"),
        ("offset = -3.0, ", "", "attribute", "attribute offset is missing"),
        ("offset = -3.0", "offset = -3", "attribute", "attribute offset is -3, not of type FLOAT"),
        (', dst_type = "INT8"', "", "attribute", "attribute dst_type is missing; it is one of INT4, INT8, INT16"),
        ('"INT8"', '"UINT8"', "attribute", "attribute dst_type is 'UINT8'"),
        ('"INT8"', "2", "attribute", "attribute dst_type is 2"),
        ("offset = -3.0", "offset = -129.0", "offset", "offset -129 is no integer from -128 to 127"),
        ("offset = -3.0", "offset = 0.5", "offset", "offset 0.5 is no integer"),
        ("scale = 2.0", "scale = 0.0", "scale", "scale 0 stands for steps of inf"),
        ("scale = 2.0", "scale = -1.0", "scale", "scale -1 stands for steps of -1"),
        ("scale = 2.0", "scale = 8388608.0", "scale", "scale 8388608 stands for steps of 1.1920929e-07; devices take"),
        ("scale = 2.0", "scale = 1e-8", "scale", "scale 9.99999994e-09 stands for steps of 100000000"),
    ],
)
def test_attributes_of_ascend_quant(old: str, new: str, rule: str, message: str) -> None:
    (finding,) = check_deploy(conv(CONV.replace(old, new)))
    assert (finding.rule, finding.node, finding.stops) == (rule, "conv_quant", True)
    assert finding.message.startswith(message)


def test_the_largest_step_that_a_record_may_have() -> None:
    """1 / 8388608 is float32's epsilon, the multiplier of the largest scale_d."""
    assert found(conv(CONV.replace("scale = 2.0", "scale = 1.1920928955078125e-07"))) == []


@pytest.mark.parametrize(
    ("weights", "rule", "node", "message"),
    [
        ({"w": normal(2, 17, 1, 1)}, "weight", "conv", "its weight is float32; a quantized layer has int8"),
        ({"w": np.array(1, np.int8)}, "weight", "conv", "its weight has shape [], which holds no channels"),
        ({"b": normal(2)}, "bias", "conv", "its bias is float32; a quantized layer has int32"),
        ({"p": np.array([0.5], np.float32)}, "parameter", "conv_dequant", "its second input is float32; it takes"),
        ({"p": bits(1, 1, 1)}, "parameter", "conv_dequant", "its parameter has shape [3]; it takes [1] or [2]"),
        ({"p": bits(1).reshape(())}, "parameter", "conv_dequant", "its parameter has shape []; it takes [1] or [2]"),
        ({"p": bits(1) + np.uint64(2**40)}, "parameter", "conv_dequant", "the upper 32 bits of its parameter"),
        ({"p": bits(1.0, 0.0)}, "scale", "conv_dequant", "a scale in its parameter is not positive and finite"),
        ({"p": bits(float("nan"))}, "scale", "conv_dequant", "a scale in its parameter is not positive and finite"),
    ],
)
def test_weights_biases_and_parameters(weights: dict[str, Array], rule: str, node: str, message: str) -> None:
    (finding,) = check_deploy(conv(**weights))
    assert (finding.rule, finding.node, finding.stops) == (rule, node, True)
    assert finding.message.startswith(message)


def test_small_multipliers_are_noted() -> None:
    assert found(conv(p=bits(1e-8))) == [("scale", "conv_dequant", False)]


def test_a_parameter_and_a_weight_that_are_computed() -> None:
    model = conv(CONV, f"{IMAGE}, uint64[2] s, int8[2,17,1,1] v")
    model.graph.node[2].input[1], model.graph.node[1].input[1] = "s", "v"
    assert found(model) == [("weight", "conv", True), ("parameter", "conv_dequant", True)]


@pytest.mark.parametrize(
    ("nodes", "findings"),
    [
        (CONV.replace("Conv(q", "Conv(x"), [("conv", "no AscendQuant feeds it")]),
        (
            CONV.replace("[conv_dequant] y = AscendDequant <dtype = 0> (a, p)", "y = Relu(a)"),
            [("conv", "no AscendDeq")],
        ),
        (f"{CONV} [tap] z = Relu(a)", [("conv", "its integer result also goes to Relu 'tap'")]),
        (f"{CONV} [tap] z = Relu(q)", [("conv_quant", "its integers go to Relu 'tap', which wants floats")]),
        (f"{CONV} [tap] z = AscendDequant(x, p)", [("tap", "it does not follow a quantized layer")]),
        (
            f"{CONV} [tap] z = AscendAntiQuant <scale = 0.5, offset = 0.0> (x)",
            [("tap", "it does not follow an AscendQuant")],
        ),
    ],
)
def test_what_is_not_enclosed(nodes: str, findings: list[tuple[str, str]]) -> None:
    got = [finding for finding in check_deploy(conv(nodes)) if finding.rule == "enclosure"]
    assert [finding.node for finding in got] == [node for node, _ in findings]
    assert all(words in finding.message for finding, (_, words) in zip(got, findings, strict=True))
    assert all(finding.stops for finding in got)


def test_an_integer_result_that_leaves_the_model() -> None:
    model = conv()
    model.graph.output.append(helper.make_tensor_value_info("a", onnx.TensorProto.INT32, None))
    assert [finding.message for finding in check_deploy(model)] == [
        "its integer result also goes to the model's output"
    ]


def test_padding_may_stand_between_quant_and_pool() -> None:
    nodes = """
        [pool_quant] q = AscendQuant <scale = 2.0, offset = 0.0, dst_type = "INT8"> (x)
        [pool_pad] r = Pad(q, pads)
        [pool] a = AveragePool <kernel_shape = [1, 1]> (r)
        [pool_dequant] y = AscendDequant <dtype = 0> (a, p)
    """
    pads = {"pads": np.zeros(8, np.int64)}
    assert found(parse(nodes, IMAGE, "float[1,17,1,1] y", {**pads, "p": bits(0.5)})) == []
    assert found(parse(nodes, IMAGE, "float[1,17,1,1] y", {**pads, "p": bits(*[0.5] * 17)})) == [
        ("parameter", "pool_dequant", True)
    ]


def test_single_inputs() -> None:
    model = parse(ANTI, IMAGE, "float[1,17,1,1] y")
    assert found(model) == [("not_quantized", "", False)]
    bad = parse(
        ANTI.replace("AscendAntiQuant <scale = 0.5", "AscendAntiQuant <scale = 1e-9"), IMAGE, "float[1,17,1,1] y"
    )
    assert ("scale", "pool_0_anti_quant", True) in found(bad)


NET = parse(
    """
    [conv] c = Conv(x, w1)  [pool] p = AveragePool <kernel_shape = [2, 2]> (c)  [up] t = ConvTranspose(p, w2)
    [flat] f = Flatten(t)  [mm] m = MatMul(f, w3)  [bias] a = Add(k, m)  [fc] y = Gemm <transB = 1> (a, w4, k)
    """,
    "float[1,20,5,5] x",
    "float[1,18] y",
    {
        "w1": normal(18, 20, 2, 2, seed=1),
        "w2": normal(18, 18, 1, 1, seed=2),
        "w3": normal(162, 18, seed=3),
        "w4": normal(18, 18, seed=4),
        "k": normal(18, seed=5),
    },
)


def test_nothing_to_find_in_what_is_written(tmp_path) -> None:
    result = quantize(NET, [normal(1, 20, 5, 5)], trial=False)
    assert len(result.report.layers) == 5
    assert result.report.deploy == ()
    paths = result.save(tmp_path / "m")
    assert check_deploy(paths["ascend"]) == ()
    without = quantize(NET, [normal(1, 20, 5, 5)], formats=["qdq"], trial=False)
    assert without.report.to_dict()["deploy_findings"] == []


def test_the_report_says_what_the_file_says(tmp_path) -> None:
    net = parse("[c] y = Conv(x, w)", "float[N,3,4,4] x", "float[N,2,4,4] y", {"w": normal(2, 3, 1, 1)}, opset=7)
    result = quantize(net, [normal(1, 3, 4, 4)], formats=["ascend"])
    paths = result.save(tmp_path / "m")
    assert result.report.deploy == check_deploy(paths["ascend"])
    assert [finding.rule for finding in result.report.deploy] == ["opset", "dynamic_shape", "few_channels"]


def test_the_command(tmp_path, capsys) -> None:
    good, bad, broken = (tmp_path / name for name in ("good.onnx", "bad.onnx", "broken.onnx"))
    onnx.save(conv(inputs="float[N,17,1,1] x"), good)
    onnx.save(conv(opset=7), bad)
    broken.write_bytes(b"no model at all")
    assert main(["check-deploy", str(good)]) == 0
    assert "for the Ascend compiler: x: the shape is not fixed" in capsys.readouterr().out
    assert main(["check-deploy", str(bad), "--json"]) == 1
    data = json.loads(capsys.readouterr().out)
    assert (data["file"], data["compiles"]) == (str(bad), False)
    assert [(entry["rule"], entry["stops"]) for entry in data["findings"]] == [("opset", True)]
    assert set(data["findings"][0]) == {"rule", "node", "message", "remedy", "stops"}
    assert main(["check-deploy", str(broken)]) == 2
    assert main(["check-deploy", str(tmp_path / "nope.onnx")]) == 2
