"""Legal but nasty models: each gives models that run and agree with float, or an error a user can act on."""

import math

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from small_models import FEED, conv_net, model, product_net, random, value

import amct_onnx
from amct_onnx.api.trial import signal_to_noise
from amct_onnx.errors import DataError, ModelError, NothingToCompressError

ROWS = random(2, 6, seed=3)


def refusals(result):
    return {refusal.node: refusal.reason for refusal in result.report.refusals}


def assert_good(result, least=30):
    assert result.report.layers
    for trial in result.report.trials:
        assert trial.error is None
        assert trial.snr_db >= least


def spoiled(value_):
    weight = random(4, 3, 3, 3)
    weight[1, 2, 0, 0] = value_
    return weight


@pytest.mark.parametrize(
    ("net", "reason"),
    [
        (conv_net(weight=spoiled(np.nan)), "weight holds NaN"),
        (conv_net(weight=spoiled(-np.inf)), "weight holds NaN or infinite"),
        (conv_net(bias=np.array([0, np.nan, 0, 0], np.float32)), "bias holds NaN"),
    ],
)
def test_broken_constants_are_refused_layer_by_layer(net, reason):
    result = amct_onnx.quantize(net, [FEED], trial=False)
    assert reason in refusals(result)["conv"]
    assert [layer.name for layer in result.report.layers] == ["last"]
    assert all(np.isfinite(entry.scale_w).all() for entry in result.record.layers.values())


def test_activations_beyond_any_device_scale_are_refused_layer_by_layer():
    result = amct_onnx.quantize(conv_net(bias=np.full(4, 1e20, np.float32)), [FEED], trial=False)
    assert "scale_d" in refusals(result)["last"]
    assert set(result.record.layers) == {"conv"}
    # no pair stays behind for a layer that runs in float
    assert not set(result.tensors.layers) - {"r"}


@pytest.mark.parametrize(("factor", "words"), [(1e-6, "too small"), (1e-30, "too small"), (1e12, "devices take")])
def test_activations_that_no_scale_serves_are_no_silent_loss(factor, words):
    with pytest.raises(NothingToCompressError, match=words):
        amct_onnx.quantize(conv_net(), [FEED * np.float32(factor)])


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_data_without_a_finite_value_is_an_error(bad):
    with pytest.raises(NothingToCompressError, match="no finite value"):
        amct_onnx.quantize(conv_net(), [np.full_like(FEED, bad)])


@pytest.mark.parametrize(
    "net",
    [
        conv_net(weight=random(1, 3, 3, 3)),
        conv_net(bias=np.full(4, 1e9, np.float32)),
        conv_net(weight=np.where(np.arange(4).reshape(4, 1, 1, 1) == 2, 1e-37, random(4, 3, 3, 3)).astype(np.float32)),
    ],
)
def test_odd_constants_are_quantized_well(net):
    result = amct_onnx.quantize(net, [FEED])
    assert len(result.report.layers) == 2
    assert_good(result)
    with np.errstate(under="ignore"):
        products = [np.float32(entry.scale_d) * np.float32(entry.scale_w) for entry in result.record.layers.values()]
    assert all((product >= np.finfo(np.float32).tiny).all() for product in products)


@pytest.mark.parametrize("net", [conv_net(weight=np.zeros((4, 3, 3, 3), np.float32)), conv_net()])
def test_constant_zero_in_zero_out(net):
    feed = np.zeros_like(FEED)
    assert all(math.isinf(trial.snr_db) for trial in amct_onnx.quantize(net, [feed]).report.trials)


def test_only_inputs_observed():
    gemm = helper.make_node("Gemm", ["x", "w", "c"], ["y"], name="g")
    net = model([gemm], [value("x", [2, 6])], [value("y", [2, 5])], {"w": random(6, 5), "c": np.float32(0.5)})
    assert_good(amct_onnx.quantize(net, [ROWS]))


def test_empty_weight_beside_a_full_one():
    nodes = [
        helper.make_node("MatMul", ["x", "none"], ["e"], name="empty"),
        helper.make_node("MatMul", ["x", "w"], ["y"], name="full"),
    ]
    constants = {"none": np.zeros((6, 0), np.float32), "w": random(6, 5)}
    net = model(nodes, [value("x", [2, 6])], [value("y", [2, 5]), value("e", [2, 0])], constants)
    assert_good(amct_onnx.quantize(net, [ROWS]))


def test_infinite_constant_operand_stays_float():
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"], name="conv"),
        helper.make_node("Add", ["c", "k"], ["m"], name="add"),
        helper.make_node("Relu", ["m"], ["n"], name="relu"),
        helper.make_node("Conv", ["n", "w2"], ["y"], name="last"),
    ]
    shift = np.zeros((1, 4, 1, 1), np.float32)
    shift[0, 1] = -np.inf
    constants = {"w": random(4, 3, 3, 3), "w2": random(2, 4, 3, 3), "k": shift}
    result = amct_onnx.quantize(model(nodes, [value("x", ["N", 3, 8, 8])], [value("y", None)], constants), [FEED])
    assert "k" not in result.tensors.layers
    assert_good(result)


def test_undeclared_half_precision_is_found_out():
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"], name="conv"),
        helper.make_node("Cast", ["c"], ["h"], to=TensorProto.FLOAT16),
        helper.make_node("AveragePool", ["h"], ["p"], name="pool", kernel_shape=[2, 2]),
        helper.make_node("Cast", ["p"], ["y"], to=TensorProto.FLOAT),
    ]
    net = model(nodes, [value("x", ["N", 3, 8, 8])], [value("y", None)], {"w": random(4, 3, 3, 3)})
    result = amct_onnx.quantize(net, [FEED])
    assert "only float32" in refusals(result)["pool"]
    assert_good(result)


def test_doubled_node_names():
    net = conv_net()
    for node in net.graph.node:
        node.name = "same"
    result = amct_onnx.quantize(net, [FEED])
    assert len(result.report.layers) == 2
    assert_good(result)


@pytest.mark.parametrize("kind", [object, str])
def test_string_inputs_are_fed(kind):
    same = helper.make_node("Identity", ["s"], ["t"])
    strings = TensorProto.STRING
    net = product_net([same], [value("s", ["N"], strings)], [value("t", ["N"], strings)])
    assert_good(amct_onnx.quantize(net, [{"x": ROWS, "s": np.array(["a", "b"], dtype=kind)}]))


def test_integer_and_bool_inputs():
    nodes = [
        helper.make_node("Gather", ["table", "index"], ["g"]),
        helper.make_node("Where", ["keep", "g", "zero"], ["f"]),
    ]
    inputs = [value("index", ["N"], TensorProto.INT64), value("keep", ["N", 1], TensorProto.BOOL)]
    constants = {"table": random(10, 6), "zero": np.float32(0)}
    net = product_net(nodes, inputs, feed="f", has_x=False, constants=constants)
    feed = {"index": np.array([1, 9], np.int32), "keep": np.array([[True], [True]])}
    assert_good(amct_onnx.quantize(net, [feed]))


def test_sequences_come_out_but_cannot_go_in():
    outwards = helper.make_node("SequenceConstruct", ["y", "y"], ["s"])
    several = helper.make_tensor_sequence_value_info("s", TensorProto.FLOAT, None)
    net = product_net(extra_outputs=[several])
    net.graph.node.append(outwards)
    assert_good(amct_onnx.quantize(net, [ROWS]))
    inwards = helper.make_node("ConcatFromSequence", ["s"], ["f"], axis=0)
    net = product_net([inwards], [several], feed="f", has_x=False)
    with pytest.raises(DataError, match=r"'s' is a seq\(tensor\(float\)\).*tensor inputs"):
        amct_onnx.quantize(net, [{"s": [ROWS]}])


def test_input_of_unknown_rank():
    net = conv_net()
    net.graph.input[0].type.tensor_type.ClearField("shape")
    assert_good(amct_onnx.quantize(net, [FEED]))


def test_operators_the_runtime_lacks_are_named():
    custom = helper.make_node("Foo", ["x"], ["f"], name="foo", domain="my.own")
    with pytest.raises(ModelError, match=r"my\.own:Foo.*only operators that onnxruntime has"):
        amct_onnx.quantize(product_net([custom], feed="f", domains=["my.own"]), [ROWS])


def test_external_weights_of_a_proto_have_no_folder(tmp_path, monkeypatch):
    onnx.save(conv_net(), tmp_path / "m.onnx", save_as_external_data=True, size_threshold=0, location="m.data")
    net = onnx.load(tmp_path / "m.onnx", load_external_data=False)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ModelError, match=r"'w'.*m\.data"):
        amct_onnx.quantize(net, [FEED])


def without_input(net):
    del net.graph.node[0].input[1:]


def with_unmade_input(net):
    net.graph.node[0].input[0] = "nowhere"


def without_output(net):
    del net.graph.node[2].output[:]


def with_wrong_shape(net):
    net.graph.initializer[0].dims[0] = 5


def with_lost_bytes(net):
    net.graph.initializer[0].raw_data = net.graph.initializer[0].raw_data[:-3]


def with_lost_values(net):
    initializer = net.graph.initializer[0]
    initializer.ClearField("raw_data")
    initializer.float_data.extend([1.0, 2.0])


def with_doubled_result(net):
    net.graph.node[2].output[0] = "r"


def with_result_of_a_weights_name(net):
    net.graph.node[1].output[0] = "w"


def with_own_result_as_input(net):
    net.graph.node[1].input[0] = "y"


def with_attribute_of_another_type(net):
    net.graph.node[0].attribute.append(helper.make_attribute("group", "x"))


def without_nodes(net):
    net.graph.ClearField("node")


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (without_input, "'conv'.*1 inputs"),
        (with_unmade_input, "'conv'.*'nowhere'"),
        (without_output, "'last'.*0 outputs"),
        (with_wrong_shape, "'w'.*432 bytes instead of 540"),
        (with_lost_bytes, "'w'.*429 bytes"),
        (with_lost_values, "'w'.*2 values"),
        (with_doubled_result, "'last'.*'r'.*there already"),
        (with_result_of_a_weights_name, "'relu'.*'w'.*there already"),
        (with_own_result_as_input, "needs its own result"),
        (with_attribute_of_another_type, "'conv'.*'group' of type STRING instead of INT"),
        (without_nodes, "no nodes"),
    ],
)
def test_models_that_contradict_themselves(spoil, words):
    net = conv_net()
    spoil(net)
    with pytest.raises(ModelError, match=words):
        amct_onnx.quantize(net, [FEED])
    with pytest.raises(ModelError, match=words):
        amct_onnx.inspect(net)


def test_nothing_comparable_is_no_success():
    integers, nothing = np.arange(3), np.full(3, np.nan, np.float32)
    assert math.isnan(signal_to_noise([integers], [integers + 1]))
    assert math.isnan(signal_to_noise([nothing], [nothing]))
    assert math.isnan(signal_to_noise([np.ones(3, np.float32)], [nothing]))


def test_one_name_to_skip_is_not_taken_for_letters():
    result = amct_onnx.quantize(conv_net(), [FEED], skip="conv", trial=False)
    assert set(result.record.layers) == {"last"}


def with_flat_weight(net):
    net.graph.node[0].op_type = "Gemm"
    net.graph.initializer[0].dims[:] = [108]


def with_short_statistics(net):
    constants = {"s": 1, "t": 1, "m": 3, "v": 4}
    net.graph.initializer.extend(
        numpy_helper.from_array(np.ones(size, np.float32), name) for name, size in constants.items()
    )
    net.graph.node[1].CopyFrom(helper.make_node("BatchNormalization", ["c", *constants], ["r"], name="norm"))


@pytest.mark.parametrize("spoil", [with_flat_weight, with_short_statistics])
def test_what_onnxruntime_refuses_is_the_models_fault(spoil):
    net = conv_net()
    spoil(net)
    with pytest.raises(ModelError, match="onnxruntime cannot load"):
        amct_onnx.quantize(net, [FEED])


@pytest.mark.parametrize("damage", [b"co\x9fv", b"re\xffu"])
def test_names_that_are_no_text(tmp_path, damage):
    whole = conv_net().SerializeToString()
    (tmp_path / "m.onnx").write_bytes(whole.replace(b"conv" if damage.startswith(b"c") else b"relu", damage))
    with pytest.raises(ModelError, match="not UTF-8"):
        amct_onnx.quantize(tmp_path / "m.onnx", [FEED])
