"""``tensor_quantize`` of a config: planned, recorded, reported, replayed."""

from __future__ import annotations

import re

import numpy as np
import pytest

from amct_onnx import NothingToCompressError, RecordError, apply, quantize
from amct_onnx.record import format_record, parse_record
from tests.models import normal, parse

NET = parse(
    """
    [conv] c = Conv(x, w1)
    [add] s = Add(c, x)
    [pool] p = MaxPool <kernel_shape = [2, 2]> (s)
    [conv2] y = Conv(p, w2)
    """,
    "float[1,4,6,6] x",
    "float[1,4,5,5] y",
    {"w1": normal(4, 4, 1, 1, seed=1), "w2": normal(4, 4, 1, 1, seed=2)},
)
FEEDS = [{"x": normal(1, 4, 6, 6, seed=seed)} for seed in range(3)]
BOTH = """
batch_num: 3
tensor_quantize { layer_name: "add" input_index: 1 }
tensor_quantize { layer_name: "pool" input_index: 0 ifmr_quantize { asymmetric: false } }
"""


@pytest.fixture
def cfg(tmp_path):
    def write(text: str):
        path = tmp_path / "my.cfg"
        path.write_text(text)
        return path

    return write


def test_record_and_report(cfg) -> None:
    result = quantize(NET, FEEDS, config=cfg(BOTH))
    layers = result.record.layers
    assert list(layers) == ["conv", "conv2", "add:1", "pool:0"]
    entry = layers["add:1"]
    assert (entry.is_tensor_quantize, entry.act_type, entry.scale_w, entry.wts_type) == (True, "INT8", (), None)
    # The Add reads what the first convolution reads, and both are asked for with AMCT's defaults.
    assert (entry.scale_d, entry.offset_d) == (layers["conv"].scale_d, layers["conv"].offset_d)
    assert layers["pool:0"].offset_d == 0
    reported = [
        (summary.node, summary.input_index, summary.op_type, summary.tensor) for summary in result.report.inputs
    ]
    assert reported == [("add", 1, "Add", "x"), ("pool", 0, "MaxPool", "s")]
    assert result.report.to_dict()["inputs"][1]["scale_d"] == layers["pool:0"].scale_d
    assert not any("tensor_quantize" in note for note in result.report.notes)
    operators = [node.op_type for node in result.model("ascend").graph.node]
    # One AscendQuant on x serves the convolution and the Add.
    assert (operators.count("AscendQuant"), operators.count("AscendAntiQuant")) == (3, 2)


def test_min_max_by_hand(cfg) -> None:
    feeds = [{"x": np.zeros((1, 4, 6, 6), np.float32)}]
    feeds[0]["x"].flat[:2] = [-1, 4.1]
    exact = "ifmr_quantize { search_range_start: 1 search_range_end: 1.01 max_percentile: 1 min_percentile: 1 }"
    text = f'tensor_quantize {{ layer_name: "add" input_index: 1 {exact} }}'
    entry = quantize(NET, feeds, config=cfg(text)).record.layers["add:1"]
    assert entry.scale_d == pytest.approx(5.1 / 255, rel=0.01)
    assert entry.offset_d == pytest.approx(-128 + 50, abs=1)


def test_apply_replays(cfg, tmp_path) -> None:
    result = quantize(NET, FEEDS, config=cfg(BOTH))
    result.save(tmp_path / "m")
    again = apply(NET, tmp_path / "m_record.txt")
    assert again.report.inputs == result.report.inputs
    for form in result.models:
        assert again.model(form).SerializeToString() == result.model(form).SerializeToString()


def test_inputs_alone(cfg) -> None:
    text = 'skip_layer_types: "Conv" tensor_quantize { layer_name: "add" input_index: 0 }'
    result = quantize(NET, FEEDS, config=cfg(text))
    assert list(result.record.layers) == ["add:0"]
    assert {trial.error for trial in result.report.trials} == {None}
    sums = parse("[add] y = Add(a, b)", "float[4] a, float[4] b", "float[4] y")
    text = 'tensor_quantize { layer_name: "add" input_index: 0 }'
    feeds = [{"a": normal(4), "b": normal(4)}]
    assert list(quantize(sums, feeds, config=cfg(text)).record.layers) == ["add:0"]


def test_half_precision_and_a_target_without_zero_points(cfg) -> None:
    half = quantize(NET, FEEDS, config=cfg(BOTH + "fakequant_precision_mode: FORCE_FP16_QUANT")).record.layers["add:1"]
    assert float(np.float16(half.scale_d)) == half.scale_d
    symmetric = quantize(NET, FEEDS, config=cfg(BOTH), formats=["qdq"], qdq_target="tensorrt").record.layers
    assert {entry.offset_d for entry in symmetric.values()} == {0}


def test_balanced_tensors(cfg) -> None:
    text = BOTH + "common_config { dmq_balancer {} }"
    result = quantize(NET, FEEDS, config=cfg(text))
    assert {trial.error for trial in result.report.trials} == {None}
    again = apply(NET, result.record, tensors=result.tensors)
    assert again.model("ascend") == result.model("ascend")


@pytest.mark.parametrize(
    ("name", "values", "reason"),
    [
        ("add", np.full((1, 4, 6, 6), np.nan, np.float32), "calibration saw no finite value of its input"),
        ("add", np.full((1, 4, 6, 6), 3e38, np.float32), "which asks for scale_d"),
    ],
)
def test_values_that_cannot_be_quantized(cfg, name: str, values, reason: str) -> None:
    net = parse(
        "[add] y = Add(x, z)  [conv] c = Conv(v, w)",
        "float[1,4,6,6] x, float[1,4,6,6] z, float[1,4,6,6] v",
        "float[1,4,6,6] y, float[1,4,6,6] c",
        {"w": normal(4, 4, 1, 1)},
    )
    feeds = [{"x": values, "z": np.zeros_like(values), "v": normal(1, 4, 6, 6)}]
    result = quantize(net, feeds, config=cfg('tensor_quantize { layer_name: "add" input_index: 0 }'), trial=False)
    assert list(result.record.layers) == ["conv"]
    ((node, op_type, why),) = [(entry.node, entry.op_type, entry.reason) for entry in result.report.refusals]
    assert (node, op_type) == (f"{name}:0", "Add")
    assert reason in why


def test_a_constant_input(cfg) -> None:
    sums = parse("[add] y = Add(a, k)", "float[4] a", "float[4] y", {"k": normal(4)})
    text = 'tensor_quantize { layer_name: "add" input_index: 1 }'
    with pytest.raises(NothingToCompressError, match="'add:1' \\(Add\\): this input is a constant"):
        quantize(sums, [normal(4)], config=cfg(text))


def entry(key: str, more: str = "") -> str:
    return f'record {{ key: "{key}" value {{ scale_d: 0.1 offset_d: 0 is_tensor_quantize: true {more} }} }}'


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (entry("conv:0"), "single inputs are quantized of Add and MaxPool only, not of a Conv"),
        (entry("add:2"), '"add" has 2 inputs, counted from 0'),
        (entry("add:01"), 'asks for a key "node:index"'),
        (entry("ad:1"), 'did you mean "add"'),
        (entry("add:1", 'act_type: "INT16"'), "the type is INT16; single inputs take INT8"),
        (entry("add:1", "tensor_balance_factor: 1"), "which cannot be balanced"),
        (entry("add:1").replace("scale_d: 0.1", "scale_d: 1e-8"), "devices multiply by its inverse"),
    ],
)
def test_records_that_do_not_fit(text: str, words: str) -> None:
    with pytest.raises(RecordError, match=re.escape(words)):
        apply(NET, parse_record(text), formats=["ascend"])


def test_the_text_of_an_entry(cfg) -> None:
    text = format_record(quantize(NET, FEEDS, config=cfg(BOTH)).record)
    value = re.search(r'key: "add:1"\n  value \{\n(.*?)  \}\n', text, re.DOTALL)
    assert value is not None
    fields = [line.split(":")[0].strip() for line in value[1].splitlines()]
    assert sorted(fields) == ["act_type", "is_tensor_quantize", "offset_d", "scale_d"]


def test_what_only_fusing_made_is_refused_not_asked_of_the_source(cfg) -> None:
    """A layer left float takes in the Mul, and the Add behind it reads a tensor that the source does not have."""
    net = parse(
        "[mm] t = MatMul(x, m) [mul] u = Mul(t, k) [add] v = Add(u, b) [last] y = MatMul(v, n)",
        "float[3,6] x",
        "float[3,4] y",
        {"m": normal(6, 5), "n": normal(5, 4), "k": np.array(2, np.float32), "b": normal(5, seed=1)},
    )
    text = 'batch_num: 1 skip_layers: "mm" tensor_quantize { layer_name: "add" input_index: 0 }'
    result = quantize(net, [normal(3, 6)], config=cfg(text))
    (refusal,) = [refusal for refusal in result.report.refusals if refusal.node == "add:0"]
    assert "fusing made of the layer 'mm'" in refusal.reason
    again = quantize(net, [normal(3, 6)], config=cfg(f"{text} do_fusion: false"))
    assert list(again.record.layers)[:2] == ["last", "add:0"]
