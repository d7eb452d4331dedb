"""Rules that need a model: each names the entry, its line and the remedy."""

from __future__ import annotations

import pytest

from amct_onnx.errors import RecordError
from amct_onnx.record import KVCacheRecord, LayerFacts, LayerRecord, Record, Severity, parse_record, validate_record

FACTS: dict[str, LayerFacts | str] = {
    "conv": LayerFacts(op_type="Conv", channels_out=3, channels_in=2),
    "conv3d": LayerFacts(op_type="Conv", symmetric_only=True),
    "one": LayerFacts(op_type="Conv", channels_out=1, channels_in=2),
    "fc": LayerFacts(op_type="Gemm", channels_out=3, channels_in=2, per_channel_allowed=False),
    "pool": LayerFacts(op_type="AveragePool", has_weight=False),
    "lstm": LayerFacts(op_type="LSTM", gates=4, channels_out=8),
    "w8": LayerFacts(op_type="Conv", act_types=frozenset({"INT8"}), wts_types=frozenset({"INT8"})),
    "shared": "its weight is shared with conv9",
}
NODES = {**dict.fromkeys(FACTS, 2), "add": 2, "relu": 1}
DATA = "scale_d: 1\noffset_d: 0\n"
FULL = DATA + "scale_w: 1\noffset_w: 0\n"
RNN = FULL.replace("scale_w: 1\noffset_w: 0", f"scale_w: {[1] * 4}\noffset_w: {[0] * 4}") + "scale_h: 1\noffset_h: 0\n"


def text(key: str, fields: str) -> str:
    return f'record {{\nkey: "{key}"\nvalue {{\n{fields}\n}}\n}}\n'


def without(fields: str, name: str) -> str:
    return "\n".join(line for line in fields.splitlines() if not line.startswith(name))


MISSING = (
    "is missing; a quantized Conv gives scale_d, offset_d, scale_w and offset_w: finish its calibration, or delete"
)
BROKEN = [
    # presence
    ("conv", without(FULL, "scale_d"), 1, f"scale_d {MISSING} the entry to leave it in float"),
    ("conv", without(FULL, "offset_d"), 1, f"offset_d {MISSING}"),
    ("conv", without(FULL, "scale_w"), 1, f"scale_w {MISSING}"),
    ("conv", without(FULL, "offset_w"), 1, f"offset_w {MISSING}"),
    ("conv", "shift_bit: 1", 1, f"scale_d {MISSING}"),
    (
        "pool",
        DATA + "scale_w: 1",
        1,
        "offset_w is missing; a quantized AveragePool gives scale_d, offset_d, scale_w and",
    ),
    (
        "pool",
        DATA + "offset_w: 0",
        1,
        "scale_w is missing; a quantized AveragePool gives scale_d, offset_d, scale_w and offset_w: "
        "having no weight, it gives scale_w: 1.0 and offset_w: 0",
    ),
    (
        "lstm",
        RNN + f"scale_r: {[1] * 4}",
        1,
        "offset_r is missing; a quantized LSTM gives scale_d, offset_d, scale_w, ",
    ),
    ("lstm", RNN + f"offset_r: {[0] * 4}", 1, "scale_r is missing; a quantized LSTM gives"),
    # one scale, or one for each output channel
    (
        "conv",
        DATA + "scale_w: [1, 2]\noffset_w: [0, 0]",
        6,
        "scale_w has length 2; this Conv takes 1, or 3 (one for each output channel): calibrate this model again",
    ),
    (
        "fc",
        DATA + "scale_w: [1, 2, 3]\noffset_w: [0, 0, 0]",
        6,
        "scale_w has length 3; this Gemm takes 1: quantize the",
    ),
    ("pool", DATA + "scale_w: [1, 2]\noffset_w: [0, 0]", 6, "scale_w has length 2; this AveragePool takes 1"),
    ("lstm", RNN + "scale_r: 1\noffset_r: 0", 10, "scale_r has length 1; this LSTM takes 4, or 8"),
    # types
    ("w8", FULL + 'act_type: "INT16"', 8, "the activation's type is INT16; this Conv takes INT8: correct the type"),
    ("w8", FULL + 'wts_type: "INT4"', 8, "the weight's type is INT4; this Conv takes INT8: correct wts_type"),
    (
        "pool",
        FULL + 'dst_type: "INT4"',
        8,
        "the activation's type is INT4; this AveragePool takes INT16, INT8: correct",
    ),
    (
        "conv3d",
        FULL.replace("offset_d: 0", "offset_d: 3"),
        5,
        "offset_d is 3; this Conv is quantized symmetrically only",
    ),
    # balance factors
    (
        "conv",
        "tensor_balance_factor: 1",
        4,
        "tensor_balance_factor has length 1; this Conv has 2 input channels: balance",
    ),
    ("pool", "tensor_balance_factor: 1", 4, "this AveragePool cannot be balanced; delete tensor_balance_factor"),
    ("lstm", "tensor_balance_factor: 1", 4, "this LSTM cannot be balanced; delete tensor_balance_factor"),
    # names
    ("convv", FULL, 1, 'the model has no such node; did you mean "conv"?'),
    ("/zz/QQ", "", 1, "the model has no such node; correct the name, or delete the entry"),
    ("add:1", DATA, 1, 'the model has no such node; if input 1 of "add" is meant, add is_tensor_quantize: true'),
    ("shared", FULL, 1, "the layer cannot be quantized: its weight is shared with conv9; delete its entry"),
    ("shared", "tensor_balance_factor: 1", 1, "the layer cannot be quantized: its weight is shared with conv9"),
    ("relu", FULL, 1, "the layer cannot be quantized: it is of no type that can be; delete its entry"),
    # quantized inputs
    ("add:2", DATA + "is_tensor_quantize: true", 1, '"add" has 2 inputs, counted from 0; correct the index'),
    ("ad:0", DATA + "is_tensor_quantize: true", 6, 'the model has no such node; did you mean "add"?'),
    ("add:0", "is_tensor_quantize: true\noffset_d: 0", 1, "scale_d is missing; a quantized input gives scale_d and"),
    ("add:0", "is_tensor_quantize: true\nscale_d: 1", 1, "offset_d is missing; a quantized input gives scale_d and"),
    # devices multiply by the inverse
    (
        "conv",
        FULL.replace("scale_d: 1", "scale_d: 1e-7"),
        4,
        "scale_d is 1.00000001e-07; devices multiply by its inverse",
    ),
    (
        "add:0",
        "is_tensor_quantize: true\noffset_d: 0\nscale_d: 1e8",
        6,
        "scale_d is 100000000; devices multiply by its",
    ),
]


@pytest.mark.parametrize(("key", "fields", "line", "message"), BROKEN)
def test_rule_on_the_model(key: str, fields: str, line: int, message: str) -> None:
    loaded = parse_record(text(key, fields), source="r.txt")
    with pytest.raises(RecordError) as fault:
        validate_record(loaded, FACTS, nodes=NODES)
    assert f'line {line}, "{key}": {message}' in str(fault.value)
    assert str(fault.value).startswith("r.txt")


KEPT = [
    ("conv", FULL),
    ("conv", DATA + "scale_w: [1, 2, 3]\noffset_w: [0, 0, 0]\ntensor_balance_factor: [1, 2]"),
    ("conv", FULL + 'act_type: "INT16" wts_type: "INT7"'),
    ("one", FULL),
    ("fc", FULL),
    ("pool", FULL),
    ("conv3d", DATA + "scale_w: [1, 2]\noffset_w: [0, 0]"),
    ("lstm", RNN + f"scale_r: {[1] * 8}\noffset_r: {[0] * 8}"),
    ("conv", "skip_fusion: true"),
    ("relu", "skip_fusion: true"),
    ("shared", ""),
    ("add:1", DATA + "is_tensor_quantize: true"),
]


@pytest.mark.parametrize(("key", "fields"), KEPT)
def test_record_that_fits(key: str, fields: str) -> None:
    assert validate_record(parse_record(text(key, fields)), FACTS, nodes=NODES) == ()


def test_warnings_are_returned() -> None:
    (finding,) = validate_record(parse_record(text("conv", FULL + "shift_bit: 1")), FACTS)
    assert (finding.line, finding.entry, finding.severity) == (8, "conv", Severity.WARNING)


def test_without_nodes_only_layers_are_known() -> None:
    record = Record({"add:5": LayerRecord(scale_d=1.0, offset_d=0, is_tensor_quantize=True)})
    with pytest.raises(RecordError, match=r'^record, "add:5": the model has no such node'):
        validate_record(record, FACTS)
    assert validate_record(record, {**FACTS, "add": "it has no weight"}) == ()


def test_cache_names_a_node() -> None:
    record = Record(kv_cache={"cont": KVCacheRecord((1.0,), (0,))})
    with pytest.raises(RecordError, match=r'^plan, "cont": the model has no such node; did you mean "conv"\?$'):
        validate_record(record, FACTS, source="plan")


def test_everything_is_listed_in_one_error() -> None:
    loaded = parse_record(text("conv", "scale_d: 1") + text("nothing", FULL) + text("shared", FULL), source="r.txt")
    with pytest.raises(RecordError) as fault:
        validate_record(loaded, FACTS)
    lines = str(fault.value).splitlines()
    assert lines[0] == "r.txt has 5 faults:"
    assert [line.split(":")[0] for line in lines[1:]] == ['  line 1, "conv"'] * 3 + [
        '  line 7, "nothing"',
        '  line 17, "shared"',
    ]


def test_many_unknown_names_are_answered_quickly() -> None:
    names = {f"/model/layers.{index}/self_attn/q_proj/MatMul": "no" for index in range(5000)}
    record = Record({f"/other/layers.{index}/q_proj/MatMul": LayerRecord() for index in range(5000)})
    with pytest.raises(RecordError, match="has 5000 faults"):
        validate_record(record, names)
