"""Recurrent layers through the whole way: plan, models, report, and a user's own loop."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import ModelProto, helper, numpy_helper

import amct_onnx
from amct_onnx import AMCT_SO
from amct_onnx.errors import NothingToCompressError, RecordError
from amct_onnx.record import LayerRecord, Record, load_record
from amct_onnx.runtime.simulator import open_simulator
from tests.models import Array, normal, parse, run
from tests.passes.test_recurrent import CASES, Case, constants, model

LSTM, GRU = CASES[0], CASES[6]


def feeds(case: Case, count: int = 6) -> list[dict[str, Array]]:
    rng = np.random.default_rng(5)
    shapes = {"x": (4, 2, 6), "h0": (case.directions, 2, 5), "c0": (case.directions, 2, 5)}
    names = ["x", "h0", "c0"][: (3 if case.op == "LSTM" else 2) if case.states else 1]
    return [{name: rng.normal(0, 0.6, shapes[name]).astype(np.float32) for name in names} for _ in range(count)]


def snr(want: Array, got: Array) -> float:
    return float(10 * np.log10((want**2).sum() / ((want - got) ** 2).sum()))


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_model_of_one_recurrent_layer_is_quantized(case: Case, tmp_path: Path) -> None:
    source = model(case, constants(case))
    result = amct_onnx.quantize(source, feeds(case), formats=["fake_quant", "qdq"], qdq_recurrent=True)
    entry = result.record.layers["rec"]
    rows = case.directions * case.rows
    assert (len(entry.scale_w), len(entry.scale_r)) == (rows, rows)
    result.save(tmp_path / "m")
    for fed in feeds(case, 2):
        want = run(source, fed)[0]
        for form in ("fake_quant", "qdq"):
            assert snr(want, run(tmp_path / f"m_{form}_model.onnx", fed)[0]) > 30


def test_the_fusion_map_names_the_ascend_operator_alone(tmp_path: Path) -> None:
    result = amct_onnx.quantize(model(LSTM, constants(LSTM)), feeds(LSTM), formats=["ascend"])
    names = [node.name for node in result.model("ascend").graph.node]
    result.save(tmp_path / "m")
    (layer,) = json.loads((tmp_path / "m_quant.json").read_text())["layers"]
    assert (layer["before"], layer["after"], names) == (["rec"], ["rec"], ["rec"])


def test_apply_writes_the_same_bytes(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    onnx.save(model(LSTM, constants(LSTM)), path)
    first = amct_onnx.quantize(path, feeds(LSTM), qdq_recurrent=True).save(tmp_path / "a")
    again = amct_onnx.apply(path, tmp_path / "a_record.txt", qdq_recurrent=True).save(tmp_path / "b")
    for kind in ("ascend", "fake_quant", "qdq"):
        assert first[kind].read_bytes() == again[kind].read_bytes()


def test_the_state_range_covers_states_that_come_in_and_go_out() -> None:
    given = feeds(GRU)
    entry = amct_onnx.quantize(model(GRU, constants(GRU)), given, act="minmax").record.layers["rec"]
    source = model(GRU, constants(GRU))
    states = [np.concatenate([fed["h0"].ravel(), run(source, fed)[0].ravel()]) for fed in given]
    low, high = min(map(np.min, states)), max(map(np.max, states))
    assert entry.scale_h == pytest.approx((high - low) / 255, rel=1e-6)
    assert entry.offset_h == round(-128 - low / entry.scale_h)


@pytest.mark.parametrize(
    ("case", "reason"),
    [
        (Case("LSTM", directions=2), "forward only"),
        (Case("LSTM", peepholes=True), "peepholes"),
        (Case("LSTM", attributes=(("clip", 1.0),)), "clips"),
        (Case("LSTM", attributes=(("input_forget", 1),)), "couples"),
        (Case("LSTM", attributes=(("activations", ["Sigmoid", "Relu", "Tanh"]),)), "unusual"),
        (Case("GRU"), "linear_before_reset"),
        (Case("RNN"), "no Ascend operator"),
    ],
    ids=str,
)
def test_what_the_ascend_operator_cannot_do_stays_float_with_it(case: Case, reason: str) -> None:
    source = model(case, constants(case))
    with pytest.raises(NothingToCompressError, match=reason):
        amct_onnx.quantize(source, feeds(case))
    record = amct_onnx.quantize(source, feeds(case), formats=["fake_quant"]).record
    with pytest.raises(RecordError, match=f"'rec'.*{reason}.*delete its entry"):
        amct_onnx.apply(source, record, formats=["ascend"])


@pytest.mark.parametrize("case", [Case("LSTM", states=False), replace(GRU, states=False)], ids=str)
@pytest.mark.parametrize("batch", ["2", "n"])
def test_a_layer_without_initial_states_gets_zeros_for_the_ascend_operator(case: Case, batch: str) -> None:
    source = model(case, constants(case))
    if batch == "n":
        source.graph.input[0].type.tensor_type.shape.dim[1].dim_param = "n"
    result = amct_onnx.quantize(source, feeds(case))
    assert [layer.name for layer in result.report.layers] == ["rec"]
    fed = {"x": feeds(case)[0]["x"] if batch == "2" else np.float32(0.5) * normal(4, 5, 6)}
    want = run(source, fed)[0]
    assert snr(want, run(result.model("fake_quant"), fed)[0]) > 30
    simulated = open_simulator(result.model("ascend"))
    np.testing.assert_array_equal(simulated.run(None, fed)[0], run(result.model("fake_quant"), fed)[0])


def test_the_usual_activations_may_be_written_out() -> None:
    case = Case("LSTM", attributes=(("activations", ["Sigmoid", "Tanh", "Tanh"]), ("direction", "forward")))
    result = amct_onnx.quantize(model(case, constants(case)), feeds(case))
    assert [layer.name for layer in result.report.layers] == ["rec"]


def test_a_record_must_hold_the_states_scales() -> None:
    source = model(LSTM, constants(LSTM))
    entry = amct_onnx.quantize(source, feeds(LSTM)).record.layers["rec"]
    whole = {name: getattr(entry, name) for name in ("scale_d", "offset_d", "scale_w", "offset_w")}
    with pytest.raises(RecordError, match="scale_h is missing"):
        amct_onnx.apply(source, Record({"rec": LayerRecord(**whole)}))
    narrow = LayerRecord(
        **{**whole, "scale_w": entry.scale_w[:3], "offset_w": (0,) * 3},
        scale_h=0.01,
        offset_h=0,
        scale_r=(0.1,) * 4,
        offset_r=(0,) * 4,
    )
    with pytest.raises(RecordError, match="scale_w has length 3; this LSTM takes 4, or 20"):
        amct_onnx.apply(source, Record({"rec": narrow}))


def test_what_pairs_of_8_bits_cannot_hold_is_said() -> None:
    source = model(LSTM, constants(LSTM))
    entry = replace(amct_onnx.quantize(source, feeds(LSTM), symmetric=True).record.layers["rec"], offset_h=3)
    with pytest.raises(RecordError, match=r'"rec": offset_h is 3; TensorRT takes no zero points'):
        amct_onnx.apply(source, Record({"rec": entry}), formats=["qdq"], qdq_target="tensorrt")
    wide = replace(entry, act_type="INT16", scale_d=1e-4, scale_h=1e-4)
    result = amct_onnx.apply(source, Record({"rec": wide}), formats=["qdq"], qdq_recurrent=True)
    assert any(
        "1 recurrent layer, 'rec', stays float in the QDQ model, since it has no pairs of 16 bits" in n
        for n in result.report.notes
    )
    fed = feeds(LSTM)[0]
    np.testing.assert_array_equal(run(result.model("qdq"), fed)[0], run(source, fed)[0])


def test_faults_of_the_recurrence_weight_are_called_by_its_names() -> None:
    values = constants(LSTM)
    source = model(LSTM, values)
    entry = replace(amct_onnx.quantize(source, feeds(LSTM)).record.layers["rec"], scale_r=(1e-30,) * 20)
    with pytest.raises(RecordError, match=r"scale_r \* scale_h = .*raise scale_r"):
        amct_onnx.apply(source, Record({"rec": entry}))
    broken = model(LSTM, {**values, "R": np.full_like(values["R"], np.nan)})
    with pytest.raises(NothingToCompressError, match="its recurrence weight holds NaN"):
        amct_onnx.quantize(broken, feeds(LSTM))


def test_an_lstm_between_layers_and_with_sequence_lengths() -> None:
    rng = np.random.default_rng(6)
    weights = {
        "w": rng.normal(0, 0.4, (6, 7)).astype(np.float32),
        "h": np.zeros((1, 2, 5), np.float32),
        "n": np.array([4, 2], np.int32),
        "out": rng.normal(0, 0.4, (5, 3)).astype(np.float32),
        **constants(Case("LSTM")),
    }
    source = parse(
        """[first] t = MatMul(v, first_w)
           [rec] y, y_h, y_c = LSTM<hidden_size = 5>(t, W, R, B, n, h, h)
           flat = Squeeze(y_h, axis)
           [last] z = MatMul(flat, out)""",
        "float[4,2,7] v",
        "float[2,3] z",
        {**weights, "first_w": weights["w"].T.copy(), "axis": np.array([0], np.int64)},
    )
    given = [{"v": rng.normal(size=(4, 2, 7)).astype(np.float32)} for _ in range(4)]
    result = amct_onnx.quantize(source, given)
    assert {layer.name for layer in result.report.layers} == {"first", "rec", "last"}
    assert all(trial.snr_db is not None and trial.snr_db > 25 for trial in result.report.trials)
    assert any("stays float in the QDQ model" in note and "'rec'" in note for note in result.report.notes)


def in_branch(case: Case) -> ModelProto:
    """The layer inside an If, its weights outside."""
    inner = model(case, constants(case))
    names = [entry.name for entry in inner.graph.output]
    graph = inner.graph
    body = helper.make_graph(list(graph.node), "then", [], [*graph.output])
    other = helper.make_graph(
        [helper.make_node("Identity", [f"other_{name}"], [f"{name}_2"]) for name in names],
        "else",
        [],
        [helper.make_tensor_value_info(f"{name}_2", 1, None) for name in names],
    )
    outputs = [helper.make_tensor_value_info(f"out_{name}", 1, [None] * (4 if name == "y" else 3)) for name in names]
    node = helper.make_node(
        "If", ["flag"], [f"out_{name}" for name in names], name="branch", then_branch=body, else_branch=other
    )
    others = [np.zeros((4, 1, 2, 5) if name == "y" else (1, 2, 5), np.float32) for name in names]
    initializers = [
        *graph.initializer,
        *(numpy_helper.from_array(v, f"other_{n}") for n, v in zip(names, others, strict=True)),
    ]
    inputs = [*graph.input, helper.make_tensor_value_info("flag", 9, [])]
    made = helper.make_graph([node], "g", inputs, outputs, initializers)
    return helper.make_model(made, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def test_inside_a_branch_it_is_quantized_alike(tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime_extensions", reason="observers in bodies need it")
    plain = amct_onnx.quantize(model(LSTM, constants(LSTM)), feeds(LSTM), act="minmax")
    flagged = [{**fed, "flag": np.array(True)} for fed in feeds(LSTM)]
    result = amct_onnx.quantize(in_branch(LSTM), flagged, act="minmax", qdq_recurrent=True)
    assert result.record.layers["rec"] == plain.record.layers["rec"]
    result.save(tmp_path / "m")
    want = run(in_branch(LSTM), flagged[0])[0]
    for form in ("fake_quant", "qdq"):
        assert snr(want, run(tmp_path / f"m_{form}_model.onnx", flagged[0])[0]) > 30


def test_states_of_one_name_in_two_bodies_are_told_apart() -> None:
    pytest.importorskip("onnxruntime_extensions", reason="observers in bodies need it")
    text = """
        z = If(c) <then_branch = p () => (float[4,1,2,5] y) { y = RNN<hidden_size = 5>(x, W, R) },
                   else_branch = q () => (float[4,1,2,5] y) { y = RNN<hidden_size = 5>(t, W, R) }>
    """
    weights = {**constants(Case("RNN", bias=False)), "tenth": np.array(0.1, np.float32)}
    source = parse("t = Mul(x, tenth)" + text, "float[4,2,6] x, bool c", "float[4,1,2,5] z", weights)
    given = [{**fed, "c": np.array(i % 2 == 0)} for i, fed in enumerate(feeds(Case("RNN", states=False)))]
    record = amct_onnx.quantize(source, given, formats=["fake_quant"], act="minmax").record
    for layer, flag in zip(record.layers, (True, False), strict=True):
        states = np.concatenate([run(source, fed)[0].ravel() for fed in given if bool(fed["c"]) is flag])
        assert record.layers[layer].scale_h == pytest.approx((states.max() - states.min()) / 255, rel=1e-5)


def test_a_users_own_loop_gives_the_same_record(tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime_extensions", reason="the drop-in flow needs it")
    path, config = tmp_path / "m.onnx", tmp_path / "config.json"
    onnx.save(model(LSTM, constants(LSTM)), path)
    amct_onnx.create_quant_config(str(config), str(path), batch_num=3)
    modified, record = str(tmp_path / "modified.onnx"), str(tmp_path / "record.txt")
    amct_onnx.quantize_model(str(config), str(path), modified, record)
    session = ort.InferenceSession(modified, AMCT_SO, providers=["CPUExecutionProvider"])
    for fed in feeds(LSTM, 3):
        session.run(None, fed)
    amct_onnx.save_model(modified, record, str(tmp_path / "out"))
    direct = amct_onnx.quantize(path, feeds(LSTM, 3), config=config)
    assert load_record(record).record.layers["rec"] == direct.record.layers["rec"]
    want = run(path, feeds(LSTM)[0])[0]
    assert snr(want, run(tmp_path / "out_fake_quant_model.onnx", feeds(LSTM)[0])[0]) > 30


@pytest.mark.parametrize("case", [LSTM, GRU, Case("RNN", directions=2)], ids=str)
def test_inspect_counts_both_weights(case: Case) -> None:
    source = model(case, constants(case))
    # Without the sequence of states, the first output has no name.
    source.graph.node[0].output[0] = ""
    del source.graph.output[0]
    (facts,) = amct_onnx.inspect(source).facts
    products = 4 * 2 * case.directions * case.rows * (6 + 5)
    assert (facts.name, facts.quantizable, facts.multiply_adds) == ("rec", True, products)


def test_the_ascend_operator_counts_as_quantized() -> None:
    result = amct_onnx.quantize(model(LSTM, constants(LSTM)), feeds(LSTM), formats=["ascend"])
    assert amct_onnx.check_deploy(result.model("ascend")) == result.report.deploy == ()
