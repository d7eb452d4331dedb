"""The public functions on the packaged model: plan, models, files, refusals."""

import json
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import amct_onnx
from amct_onnx import demo
from amct_onnx.errors import DataError, ModelError, NothingToCompressError, RecordError, UsageError
from amct_onnx.record import load_record
from amct_onnx.runtime import fetch, open_session
from amct_onnx.runtime.simulator import open_simulator


@pytest.fixture(scope="module")
def data():
    return demo.load()


@pytest.fixture(scope="module")
def result(data):
    return amct_onnx.quantize(data.model_path, np.split(data.calibration_images, 4))


def logits(session, images):
    return fetch(session, [demo.OUTPUT_NAME], {demo.INPUT_NAME: images})[0]


def accuracy(session, data):
    return float(np.mean(logits(session, data.test_images).argmax(axis=1) == data.test_labels))


@pytest.mark.parametrize("form", ["fake_quant", "qdq"])
def test_compressed_models_are_as_accurate_as_float(result, data, form):
    proto = result.model(form)
    onnx.checker.check_model(proto, full_check=True)
    assert accuracy(open_session(proto), data) >= accuracy(open_session(data.model_path), data) - 0.003


def test_deploy_model_computes_what_the_fake_quant_model_computes(result, data):
    images = data.test_images[:20]
    simulated = logits(open_simulator(result.model("ascend")), images)
    faked = logits(open_session(result.model("fake_quant"), optimize=False), images)
    np.testing.assert_array_equal(simulated, faked)


def test_every_product_of_the_qdq_model_runs_on_integers(result, tmp_path):
    path = tmp_path / "optimized.onnx"
    open_session(result.model("qdq"), optimized_path=path)
    kinds = [node.op_type for node in onnx.load(path).graph.node]
    assert kinds.count("QLinearConv") == 13
    assert kinds.count("QGemm") == 1
    assert not {"Conv", "FusedConv", "Gemm", "Clip", "DequantizeLinear"} & set(kinds)


def test_report_names_layers_sources_and_trials(result):
    report = result.report
    assert len(report.layers) == 14
    assert report.layers[0].source_nodes == ("/0/0.0/Conv", "/0/0.1/BatchNormalization")
    assert report.refusals == ()
    assert {trial.form for trial in report.trials} == {"fake_quant", "qdq"}
    assert all(trial.error is None and trial.snr_db > 30 for trial in report.trials)


def test_apply_writes_the_same_bytes_without_data(result, data, tmp_path):
    paths = result.save(tmp_path / "m")
    again = amct_onnx.apply(data.model_path, paths["record"])
    assert again.report.notes == result.report.notes
    for form in ("ascend", "fake_quant", "qdq"):
        assert again.model(form).SerializeToString(deterministic=True) == paths[form].read_bytes()
    # from memory, too
    proto = onnx.load(data.model_path)
    same = amct_onnx.apply(proto, result.record, tensors=result.tensors, formats=["qdq"])
    assert same.model("qdq").SerializeToString(deterministic=True) == paths["qdq"].read_bytes()


def test_quantizing_twice_gives_the_same_bytes(result, data):
    again = amct_onnx.quantize(onnx.load(data.model_path), np.split(data.calibration_images, 4))
    assert again.record == result.record
    assert again.tensors == result.tensors


@pytest.mark.parametrize("batches", [1, 20])
def test_batch_size_moves_no_scale(result, data, batches):
    again = amct_onnx.quantize(data.model_path, np.split(data.calibration_images, batches), trial=False)
    for name, entry in result.record.layers.items():
        assert again.record.layers[name].scale_d == pytest.approx(entry.scale_d, rel=1e-5)


def test_the_source_is_never_changed(data):
    proto = onnx.load(data.model_path)
    before = proto.SerializeToString(deterministic=True)
    amct_onnx.quantize(proto, [data.calibration_images[:10]])
    assert proto.SerializeToString(deterministic=True) == before


def test_saved_files_and_their_names(result, tmp_path):
    paths = result.save(tmp_path / "out" / "net")
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == sorted(
        [
            "net_deploy_model.onnx",
            "net_fake_quant_model.onnx",
            "net_qdq_model.onnx",
            "net_record.txt",
            "net_tensors.txt",
            "net_quant.json",
        ]
    )
    assert load_record(paths["record"]).record == result.record
    assert len(json.loads(paths["quant_json"].read_text())["layers"]) == 14


def test_deleting_an_entry_leaves_that_layer_float(result, data, tmp_path):
    name = "/1/1.0/Conv"
    layers = {key: entry for key, entry in result.record.layers.items() if key != name}
    edited = amct_onnx.apply(
        data.model_path, type(result.record)(layers, header=result.record.header), formats=["ascend", "fake_quant"]
    )
    assert len(edited.report.layers) == 13
    assert any(refusal.node == name for refusal in edited.report.refusals)
    assert f"{name}.quant" not in {node.name for node in edited.model("ascend").graph.node}
    assert accuracy(open_session(edited.model("fake_quant")), data) > 0.99


def test_editing_a_scale_changes_the_model(result, data):
    name = "/1/1.0/Conv"
    text = result.record_text()
    old = f"{result.record.layers[name].scale_d!r}"
    assert old[:8] in text
    from dataclasses import replace

    layers = dict(result.record.layers)
    layers[name] = replace(layers[name], scale_d=0.5)
    edited = amct_onnx.apply(data.model_path, type(result.record)(layers), formats=["ascend"])
    (quant,) = [node for node in edited.model("ascend").graph.node if node.name == f"{name}.quant"]
    assert {a.name: a.f for a in quant.attribute if a.name == "scale"} == {"scale": 2.0}
    assert any("header" in note for note in edited.report.notes)


def test_record_of_another_model_is_refused(result, data):
    other = onnx.load(data.model_path)
    weight = next(init for init in other.graph.initializer if len(init.dims) == 4)
    weight.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(weight) * 2, weight.name))
    with pytest.raises(RecordError, match="another model"):
        amct_onnx.apply(other, result.record)


def test_qdq_without_tensors_file_says_it_will_be_slow(result, data, tmp_path):
    paths = result.save(tmp_path / "m")
    paths["tensors"].unlink()
    again = amct_onnx.apply(data.model_path, paths["record"], formats=["qdq"])
    assert any("no tensors file" in note for note in again.report.notes)
    assert accuracy(open_session(again.model("qdq")), data) > 0.99


def test_an_empty_tensors_file_is_not_called_missing(result, data, tmp_path):
    paths = result.save(tmp_path / "m")
    paths["tensors"].write_text("# amct_onnx record, format 1\n")
    (note,) = amct_onnx.apply(data.model_path, paths["record"], formats=["qdq"]).report.notes
    assert note.startswith("the tensors file names no tensor: only layer inputs are quantized")


def test_outputs_never_overwrite_the_source(data, tmp_path):
    source = tmp_path / "net_qdq_model.onnx"
    source.write_bytes(data.model_path.read_bytes())
    result = amct_onnx.quantize(source, [data.calibration_images[:10]], formats=["qdq"], trial=False)
    with pytest.raises(UsageError, match="overwrite an input"):
        result.save(tmp_path / "net")
    assert source.read_bytes() == data.model_path.read_bytes()


@pytest.mark.parametrize("act", ["mse", "minmax", "ifmr", "percentile"])
def test_every_activation_algorithm_keeps_the_accuracy(data, act):
    result = amct_onnx.quantize(data.model_path, [data.calibration_images], act=act, formats=["qdq"])
    assert accuracy(open_session(result.model("qdq")), data) > 0.985


def test_symmetric_and_tensorrt(data):
    result = amct_onnx.quantize(data.model_path, [data.calibration_images], qdq_target="tensorrt", formats=["qdq"])
    assert {entry.offset_d for entry in result.record.layers.values()} == {0}
    proto = result.model("qdq")
    zero_points = {
        init.name: numpy_helper.to_array(init) for init in proto.graph.initializer if init.name.endswith("zero_point")
    }
    assert all(not values.any() and values.dtype == np.int8 for values in zero_points.values())
    assert accuracy(open_session(proto), data) > 0.985


def test_skip_leaves_a_layer_float_and_says_so(data):
    result = amct_onnx.quantize(data.model_path, [data.calibration_images[:20]], skip=["/0/0.0/Conv"], trial=False)
    assert "/0/0.0/Conv" not in result.record.layers
    assert [(r.node, r.reason) for r in result.report.refusals] == [("/0/0.0/Conv", "skipped on request")]


def test_skipping_what_is_no_layer_is_noted(data):
    result = amct_onnx.quantize(data.model_path, [data.calibration_images[:20]], skip=["/0/0.2/Clip"], trial=False)
    assert result.report.refusals == ()
    assert any("'/0/0.2/Clip' (Clip)" in note for note in result.report.notes)


def test_reduce_range_halves_the_weights(data):
    result = amct_onnx.quantize(data.model_path, [data.calibration_images[:20]], reduce_range=True, formats=["ascend"])
    weights = [
        numpy_helper.to_array(init)
        for init in result.model("ascend").graph.initializer
        if init.data_type == TensorProto.INT8
    ]
    assert len(weights) == 14
    assert max(int(np.abs(w.astype(int)).max()) for w in weights) <= 64


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        ({"formats": ["tflite"]}, UsageError, ["tflite", "ascend"]),
        ({"formats": []}, UsageError, ["formats"]),
        ({"act": "entropy"}, UsageError, ["entropy", "mse"]),
        ({"skip": ["nope"]}, UsageError, ["nope", "inspect"]),
        ({"data": []}, DataError, ["no feed"]),
        ({"data": [np.zeros((1, 28, 28), np.float32)]}, DataError, ["feed 0", "shape"]),
        ({"model": Path("missing.onnx")}, ModelError, ["missing.onnx"]),
    ],
)
def test_wrong_arguments_are_named(data, arguments, error, words):
    given = {"model": data.model_path, "data": [data.calibration_images[:2]], **arguments}
    with pytest.raises(error) as caught:
        amct_onnx.quantize(given.pop("model"), given.pop("data"), **given)
    for word in words:
        assert word in str(caught.value)


def test_model_without_layers_says_why():
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["a", "b"], ["y"], name="product")],
        "g",
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, [2, 2]) for name in "ab"],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [2, 2])],
    )
    with pytest.raises(NothingToCompressError, match=r"product.*run time"):
        amct_onnx.quantize(helper.make_model(graph), [])


def test_nan_in_data_is_reported_and_survived(data, caplog):
    images = data.calibration_images[:20].copy()
    images[3, 0, 5, 5] = np.nan
    result = amct_onnx.quantize(data.model_path, [images], formats=["qdq"], trial=False)
    assert "image" in caplog.text
    assert "NaN" in caplog.text
    assert all(np.isfinite(entry.scale_d) for entry in result.record.layers.values())


def test_inspect_counts_and_explains(data):
    found = amct_onnx.inspect(data.model_path)
    assert len(found.facts) == 14
    first = found.facts[0]
    # 3x3 Conv, 1 -> 16 channels at 28x28: 16 * 9 weights and 16 biases; 28 * 28 * 16 * 9 multiply-adds
    assert (first.op_type, first.parameters, first.multiply_adds) == ("Conv", 160, 112896)
    assert first.output_shape == ("N", 16, 28, 28)
    assert all(fact.quantizable for fact in found.facts)


def test_sizes_of_minus_one_are_free(data):
    proto = onnx.load(data.model_path)
    for info in (proto.graph.input[0], proto.graph.output[0]):
        info.type.tensor_type.shape.dim[0].dim_value = -1
    found = amct_onnx.inspect(proto)
    assert found.inputs[0].shape == (None, 1, 28, 28)
    assert (found.facts[0].multiply_adds, found.facts[0].output_shape[1:]) == (112896, (16, 28, 28))
    fixed = amct_onnx.inspect(proto, input_shapes={"image": (2, 1, 28, 28)})
    assert fixed.facts[0].multiply_adds == 2 * 112896
    assert json.dumps(found.to_dict())
