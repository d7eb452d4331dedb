"""Products of two computed tensors (attention), quantized on both inputs."""

from dataclasses import replace

import numpy as np
import pytest

import amct_onnx
from amct_onnx.api.deploy_check import check_built
from amct_onnx.cli.main import main
from amct_onnx.errors import NothingToCompressError, RecordError
from amct_onnx.record import LayerRecord, Record, format_record
from amct_onnx.runtime.simulator import open_simulator
from tests.models import Array, imported, initializers, node_named, normal, parse, run

PRODUCT = "[qk] y = MatMul(a, b)"


def product(first, second, result="float[] y"):
    shapes = [",".join(map(str, shape)) for shape in (first, second)]
    return parse(PRODUCT, f"float[{shapes[0]}] a, float[{shapes[1]}] b", result)


def quantized(proto, feeds, **options):
    return amct_onnx.quantize(proto, feeds, matmul_inputs=True, trial=False, **{"act": "minmax", **options})


def on_grid(values: Array, scale: float) -> Array:
    """Symmetric int8, with the multiplier that the AscendQuant holds."""
    multiplier = np.float32(1) / np.float32(scale)
    return np.clip(np.rint(values * multiplier), -128, 127).astype(np.int64)


def expected_product(result, feed, layer="qk", second="b"):
    """The product of the integers that the plan's two scales give, in numpy."""
    scales = result.record.layers[layer].scale_d, result.tensors.layers[second].scale_d
    integers = [on_grid(feed[name], scale) for name, scale in zip("ab", scales, strict=True)]
    return (integers[0] @ integers[1]).astype(np.float32) * (np.float32(scales[0]) * np.float32(scales[1]))


def bytes_of(result):
    models = {form: model.to_proto().SerializeToString(deterministic=True) for form, model in result.models.items()}
    return models, format_record(result.record), format_record(result.tensors)


SHAPES = {
    "matrices": ([4, 8], [8, 3]),
    "heads": ([2, 3, 4, 8], [2, 3, 8, 5]),
    "second without batch": ([2, 4, 8], [8, 5]),
    "first without batch": ([4, 8], [2, 8, 5]),
    "broadcast both ways": ([1, 3, 4, 8], [2, 1, 8, 5]),
}


@pytest.mark.parametrize("shapes", SHAPES.values(), ids=SHAPES)
def test_both_inputs_are_multiplied_as_integers(shapes):
    feed = {"a": normal(*shapes[0], seed=1), "b": normal(*shapes[1], seed=2)}
    result = quantized(product(*shapes), [feed])
    expected = expected_product(result, feed)
    np.testing.assert_array_equal(run(result.model("fake_quant"), feed, optimized=False)[0], expected)
    simulator = open_simulator(result.model("ascend"))
    np.testing.assert_array_equal(simulator.run(None, feed)[0], expected)
    assert np.abs(expected - feed["a"] @ feed["b"]).max() < 0.1 * np.abs(expected).max()


def test_deploy_model_has_a_quantizer_on_each_input_and_one_dequantizer():
    feed = {"a": normal(4, 32, seed=1), "b": normal(32, 3, seed=2)}
    result = quantized(product([4, 32], [32, 3]), [feed])
    deploy = imported(result.model("ascend"))
    assert [node.op for node in deploy.graph.nodes] == ["AscendQuant", "AscendQuant", "MatMul", "AscendDequant"]
    layer = node_named(deploy, "qk")
    assert [tensor.inputs[0].name for tensor in layer.inputs] == ["qk.quant", "qk.quant_1"]
    entry, second = result.record.layers["qk"], result.tensors.layers["b"]
    assert (entry.offset_d, second.offset_d, entry.scale_w, entry.offset_w) == (0, 0, (1.0,), (0,))
    assert node_named(deploy, "qk.quant_1").attrs["scale"] == np.float32(1) / np.float32(second.scale_d)
    param = initializers(result.model("ascend"))["qk.dequant.param"]
    expected = np.float32(entry.scale_d) * np.float32(second.scale_d)
    np.testing.assert_array_equal(param.astype(np.uint32).view(np.float32), [expected])
    assert check_built(result.models[amct_onnx.OutputForm.ASCEND]) == ()


def test_check_deploy_misses_the_quantizer_of_the_second_input():
    feed = {"a": normal(4, 32, seed=1), "b": normal(32, 3, seed=2)}
    proto = quantized(product([4, 32], [32, 3]), [feed]).model("ascend")
    (second,) = [node for node in proto.graph.node if node.name == "qk.quant_1"]
    proto.graph.node.remove(second)
    next(node for node in proto.graph.node if node.name == "qk").input[1] = "b"
    findings = amct_onnx.check_deploy(proto)
    assert [(found.rule, found.node, found.stops) for found in findings] == [("weight", "qk", True)]


@pytest.mark.parametrize("formats", [("ascend",), ("fake_quant",), ("ascend", "fake_quant", "qdq")])
def test_plan_as_text_gives_the_same_bytes(formats, tmp_path):
    proto = parse(
        "[k] kk = MatMul(x, w)  [qk] s = MatMul(q, kk)  [soft] p = Softmax(s)  [pv] y = MatMul(p, v)",
        "float[2,6,4] x, float[2,5,6] q, float[2,8,3] v",
        "float[2,5,3] y",
        {"w": normal(4, 8, seed=1)},
    )
    feeds = [{"x": normal(2, 6, 4, seed=n), "q": normal(2, 5, 6, seed=n + 9), "v": normal(2, 8, 3)} for n in (1, 2)]
    result = quantized(proto, feeds, formats=formats)
    assert set(result.record.layers) == {"k", "qk", "pv"}
    result.save(tmp_path / "m")
    again = amct_onnx.apply(proto, tmp_path / "m_record.txt", formats=formats, strict=True)
    assert bytes_of(again) == bytes_of(result)


def test_second_scale_has_to_be_there():
    proto = product([4, 8], [8, 3])
    feed = {"a": normal(4, 8, seed=1), "b": normal(8, 3, seed=2)}
    result = quantized(proto, [feed])
    with pytest.raises(RecordError, match=r'"qk".*second input "b".*--tensors'):
        amct_onnx.apply(proto, result.record)
    shifted = replace(result.tensors.layers["b"], offset_d=3)
    with pytest.raises(RecordError, match=r'"qk".*second input "b" has offset_d 3'):
        amct_onnx.apply(proto, result.record, tensors=Record({"b": shifted}, header=result.tensors.header))
    for scale in (1e9, 0.0, -1.0, float("nan")):
        wrong = LayerRecord(scale_d=scale, offset_d=0)
        with pytest.raises(RecordError, match=r'"qk".*second input "b" has scale_d .*devices'):
            amct_onnx.apply(proto, result.record, tensors=Record({"b": wrong}, header=result.tensors.header))


def test_weight_scale_of_a_product_has_no_effect_and_says_so():
    proto = product([4, 8], [8, 3])
    result = quantized(proto, [{"a": normal(4, 8, seed=1), "b": normal(8, 3, seed=2)}])
    record = replace(result.record, layers={"qk": replace(result.record.layers["qk"], scale_w=(3.0,))})
    again = amct_onnx.apply(proto, record, tensors=result.tensors)
    assert again.model("ascend") == result.model("ascend")
    assert [note for note in again.report.notes if "scale_w has no effect" in note]


def test_first_scale_has_no_zero_point():
    proto = product([4, 8], [8, 3])
    result = quantized(proto, [{"a": normal(4, 8, seed=1), "b": normal(8, 3, seed=2)}])
    layers = {"qk": replace(result.record.layers["qk"], offset_d=5)}
    with pytest.raises(RecordError, match=r'"qk".*offset_d is 5.*symmetrically only'):
        amct_onnx.apply(proto, replace(result.record, layers=layers), tensors=result.tensors)


def test_record_check_reads_the_tensors_file(tmp_path, capsys):
    proto = product([4, 8], [8, 3])
    result = quantized(proto, [{"a": normal(4, 8, seed=1), "b": normal(8, 3, seed=2)}])
    result.save(tmp_path / "m")
    (tmp_path / "float.onnx").write_bytes(proto.SerializeToString())
    command = ["record", "check", str(tmp_path / "m_record.txt"), "--model", str(tmp_path / "float.onnx")]
    assert main(command) == 0
    (tmp_path / "m_tensors.txt").rename(tmp_path / "other.txt")
    assert main([*command, "--tensors", str(tmp_path / "other.txt")]) == 0
    assert main(command) == 1
    assert 'second input "b" is computed, and no tensors file gives its scale' in capsys.readouterr().out


def test_flag_of_the_command_line(tmp_path):
    feed = {"a": normal(4, 8, seed=1), "b": normal(8, 3, seed=2)}
    np.savez(tmp_path / "feed.npz", **feed)
    proto = product([4, 8], [8, 3])
    (tmp_path / "m.onnx").write_bytes(proto.SerializeToString())
    command = [
        "quantize",
        tmp_path / "m.onnx",
        "--data",
        tmp_path / "feed.npz",
        "-o",
        tmp_path / "out",
        "--act",
        "minmax",
    ]
    assert main([*map(str, command), "--matmul-inputs"]) == 0
    assert (tmp_path / "out_record.txt").read_text() == format_record(quantized(proto, [feed]).record)


@pytest.mark.parametrize(
    ("text", "layers"),
    [
        ("batch_num: 1", {"k", "qk"}),
        ('batch_num: 1 skip_layers: "qk"', {"k"}),
        ('batch_num: 1 skip_layer_types: "MatMul"', {"g"}),
    ],
)
def test_beside_a_config(text, layers, tmp_path):
    """A config that skips such a product is heeded, although the product is no layer of AMCT's."""
    (tmp_path / "my.cfg").write_text(text)
    nodes = "[k] h = MatMul(x, w)  [qk] y = MatMul(x, h)"
    nodes = nodes.replace("y =", "q =") + "  [g] y = Gemm(q, w)" if layers == {"g"} else nodes
    proto = parse(nodes, "float[4,4] x", "float[4,4] y", {"w": normal(4, 4)})
    feeds = [{"x": normal(4, 4, seed=1)}]
    result = amct_onnx.quantize(proto, feeds, config=tmp_path / "my.cfg", matmul_inputs=True, trial=False)
    assert set(result.record.layers) == layers


def test_off_by_default():
    proto = parse(
        "[k] h = MatMul(x, w)  [qk] y = MatMul(x, h)", "float[2,4,4] x", "float[2,4,4] y", {"w": normal(4, 4)}
    )
    result = amct_onnx.quantize(proto, [normal(2, 4, 4, seed=1)], trial=False)
    assert set(result.record.layers) == {"k"}
    (refusal,) = result.report.refusals
    assert (refusal.node, refusal.reason) == ("qk", "both inputs are computed at run time, there is no weight")
    assert "--matmul-inputs" in refusal.remedy


def test_one_tensor_as_both_inputs_is_quantized_once():
    proto = parse("[xx] y = MatMul(x, x)", "float[4,4] x", "float[4,4] y")
    feed = {"x": normal(4, 4, seed=1)}
    result = quantized(proto, [feed])
    scale = result.record.layers["xx"].scale_d
    assert result.tensors.layers["x"].scale_d == scale
    integers = on_grid(feed["x"], scale)
    expected = (integers @ integers).astype(np.float32) * (np.float32(scale) * np.float32(scale))
    np.testing.assert_array_equal(run(result.model("fake_quant"), feed, optimized=False)[0], expected)
    np.testing.assert_array_equal(open_simulator(result.model("ascend")).run(None, feed)[0], expected)
    assert [node.op_type for node in result.model("ascend").graph.node].count("AscendQuant") == 1


def test_second_input_that_a_layer_reads_with_a_zero_point(tmp_path):
    """The layer's entry keeps its zero point, the tensors file holds the other scale, and nothing warns."""
    proto = parse("[fc] h = MatMul(k, w)  [qk] y = MatMul(h, k)", "float[4,4] k", "float[4,4] y", {"w": normal(4, 4)})
    feed = {"k": normal(4, 4, seed=1) + 2}
    result = quantized(proto, [feed])
    assert result.record.layers["fc"].offset_d != 0
    assert result.tensors.layers["k"].offset_d == 0
    assert result.tensors.layers["k"].scale_d != result.record.layers["fc"].scale_d
    quants = [node for node in imported(result.model("ascend")).graph.nodes if node.op == "AscendQuant"]
    assert {(node.name, node.inputs[0].name) for node in quants} >= {("fc.quant", "k"), ("qk.quant_1", "k")}
    simulated = open_simulator(result.model("ascend")).run(None, feed)[0]
    np.testing.assert_array_equal(simulated, run(result.model("fake_quant"), feed, optimized=False)[0])
    exact = run(proto, feed)[0]
    assert np.abs(simulated - exact).max() < 0.1 * np.abs(exact).max()
    result.save(tmp_path / "m")
    assert bytes_of(amct_onnx.apply(proto, tmp_path / "m_record.txt", strict=True)) == bytes_of(result)


def test_qdq_form_pairs_as_without_the_option():
    """Same nodes; the first input keeps its zero point, the second has the scale that all forms share."""
    proto = parse(
        "[soft] p = Softmax(x)  [v] vv = MatMul(x, u)  [pv] y = MatMul(p, vv)  [k] z = MatMul(y, w)",
        "float[2,4,4] x",
        "float[2,4,5] z",
        {"u": normal(4, 3), "w": normal(3, 5)},
    )
    feeds = [{"x": normal(2, 4, 4, seed=1)}]
    plain = amct_onnx.quantize(proto, feeds, act="minmax", trial=False)
    both = quantized(proto, feeds)
    nodes = [[(node.op_type, node.name) for node in result.model("qdq").graph.node] for result in (plain, both)]
    assert nodes[0] == nodes[1]
    assert plain.tensors.layers["p"] == both.tensors.layers["p"]
    assert both.tensors.layers["p"].offset_d == -128
    assert both.tensors.layers["vv"].offset_d == 0


def test_vector_operand_is_refused_with_its_reason():
    proto = parse(
        "[fc] h = MatMul(x, w)  [dot] y = MatMul(h, v)", "float[2,3] x, float[3] v", "float[2] y", {"w": normal(3, 3)}
    )
    result = quantized(proto, [{"x": normal(2, 3, seed=1), "v": normal(3, seed=2)}])
    assert [(refusal.node, refusal.remedy) for refusal in result.report.refusals] == [("dot", "reshape it to a matrix")]
    with pytest.raises(NothingToCompressError, match="one is a vector"):
        quantized(product([3], [3, 2]), [{"a": normal(3), "b": normal(3, 2)}])


def test_product_inside_a_body_is_refused_with_its_reason():
    proto = parse(
        """[fc] h = MatMul(x, w)
        [branch] y = If(c) <then_branch = one () => (float[2,2] t) { [inner] t = MatMul(h, x) },
                            else_branch = two () => (float[2,2] e) { [same] e = Identity(h) }>""",
        "float[2,2] x, bool c",
        "float[2,2] y",
        {"w": normal(2, 2)},
    )
    result = quantized(proto, [{"x": normal(2, 2, seed=1), "c": np.array(True)}])
    (refusal,) = result.report.refusals
    assert refusal.node == "inner"
    assert "inside a control-flow body" in refusal.reason


def test_float16_product_beside_a_layer():
    """A region of float16 around a layer computes in float32, the product in it as well."""
    proto = parse(
        "[fc] h = MatMul(x, w)  [qk] y = MatMul(h, x)",
        "float16[4,4] x",
        "float16[4,4] y",
        {"w": normal(4, 4).astype(np.float16)},
    )
    feed = {"x": normal(4, 4, seed=1).astype(np.float16)}
    result = quantized(proto, [feed])
    assert set(result.record.layers) == {"fc", "qk"}
    simulated = open_simulator(result.model("ascend")).run(None, feed)[0]
    faked = run(result.model("fake_quant"), feed, optimized=False)[0]
    assert faked.dtype == simulated.dtype == np.float16
    np.testing.assert_array_equal(simulated, faked)
    exact = run(proto, feed)[0].astype(np.float32)
    assert np.abs(simulated - exact).max() < 0.1 * np.abs(exact).max()


def test_factor_that_8_bits_hold_badly_leaves_the_product_float():
    """One value of 200 among 20,480 of size 1: covering it gives steps of 1.6, leaving it out loses most of the sum."""
    values = normal(160, 128, seed=1)
    values[0, 0] = 200
    feed = {"a": values, "b": normal(128, 3, seed=2)}
    with pytest.raises(NothingToCompressError, match=r"of its first input: 8 bits represent its values too badly"):
        quantized(product([160, 128], [128, 3]), [feed], act="mse")
