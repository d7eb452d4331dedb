"""Reading records: documented examples, dialects, doubled fields and keys, and files that are no record."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from amct_onnx.errors import RecordError
from amct_onnx.record import (
    AttrType,
    Finding,
    KVCacheRecord,
    LayerRecord,
    PruneAttr,
    PruneNode,
    PruneRecord,
    RecordHeader,
    Severity,
    WeightState,
    load_record,
    parse_record,
)


def f32(value: float) -> float:
    return struct.unpack("<f", struct.pack("<f", value))[0]


# The layouts in which AMCT's public documentation prints records, literals broken over lines included.
QUANTIZATION = """\
record {
key: "
conv1
"
value {
scale_d: 0.0798481479
offset_d: 1
scale_w: 0.00297622895
offset_w: 0
skip_fusion: true
dst_type: "INT8"
}
}
record {
key: "
layer1.0.conv1
"
value {
scale_d: 0.00392156886
offset_d: -128
scale_w: 0.00106807391
scale_w: 0.00104224426
offset_w: 0
offset_w: 0
dst_type: "
INT8
"
}
}
"""

BALANCE = """\
record {
key: "linear_1"
value {
scale_d: 0.00784554612
offset_d: -1
scale_w: 0.00778095098
offset_w: 0
tensor_balance_factor: 0.948409557
tensor_balance_factor: 0.984379828
}
}
"""

CHANNEL_PRUNE = """\
prune_record {
producer {
name: "conv1"
attr {
name: "type"
type: STRING
s: "Conv2d"
}
attr {
name: "begin"
type: INT
i: 0
}
attr {
name: "end"
type: INT
i: 64
}
}
consumer {
name: "BN_1"
attr {
name: "type"
type: STRING
s: "FusedBatchNormV3"
}
attr {
name: "begin"
type: INT
i: 0
}
attr {
name: "end"
type: INT
i: 64
}
}
}
"""

SELECTIVE_PRUNE = """\
prune_record {
selective_prune {
name: "conv1"
attr {
name: "mask_shape"
type: INTS
ints: 3
ints: 3
ints: 3
ints: 32
}
}
}
"""


def test_documented_quantization_record() -> None:
    loaded = parse_record(QUANTIZATION)
    assert dict(loaded.record.layers) == {
        "conv1": LayerRecord(
            scale_d=0.0798481479, offset_d=1, scale_w=(0.00297622895,), offset_w=(0,), skip_fusion=True, dst_type="INT8"
        ),
        "layer1.0.conv1": LayerRecord(
            scale_d=0.00392156886,
            offset_d=-128,
            scale_w=(0.00106807391, 0.00104224426),
            offset_w=(0, 0),
            dst_type="INT8",
        ),
    }
    assert loaded.record.header is None
    assert [(finding.line, finding.entry) for finding in loaded.findings] == [
        (2, "conv1"),
        (15, "layer1.0.conv1"),
        (25, "layer1.0.conv1"),
    ]
    assert all(finding.severity is Severity.WARNING for finding in loaded.findings)
    assert loaded.lines == {"conv1": 1, "layer1.0.conv1": 14}
    assert loaded.field_lines["layer1.0.conv1", "scale_w"] == 21


def test_documented_balance_record() -> None:
    loaded = parse_record(BALANCE)
    assert loaded.findings == ()
    layer = loaded.record.layers["linear_1"]
    assert layer.tensor_balance_factor == (f32(0.948409557), f32(0.984379828))
    assert layer.activation_type == layer.weight_type == "INT8"


def test_documented_channel_prune_record() -> None:
    loaded = parse_record(CHANNEL_PRUNE)
    (prune,) = loaded.record.prune
    (producer,), (consumer,) = prune.producers, prune.consumers
    assert (producer.name, producer.op_type, producer.begin, producer.end) == ("conv1", "Conv2d", 0, 64)
    assert (consumer.name, consumer.op_type, consumer.begin, consumer.end) == ("BN_1", "FusedBatchNormV3", 0, 64)
    assert producer.prune_index is None
    assert loaded.prune_lines == (1,)
    assert loaded.node_lines == {(0, "producer", 0): 2, (0, "consumer", 0): 20}


def test_documented_selective_prune_record() -> None:
    node = PruneNode("conv1", (PruneAttr("mask_shape", AttrType.INTS, (3, 3, 3, 32)),))
    assert parse_record(SELECTIVE_PRUNE).record.prune == (PruneRecord(selective_prune=node),)
    assert node.mask_shape == (3, 3, 3, 32)


DIALECTS = {
    "pytorch": (
        'scale_d: 0.5 offset_d: -3 scale_w: 0.25 offset_w: 0 skip_fusion: false dst_type: "INT8" act_type: "INT16" '
        'wts_type: "INT4" fakequant_precision_mode: "FORCE_FP16_QUANT" scale_h: 0.125 offset_h: 4 '
        "scale_r: 1 offset_r: 0",
        LayerRecord(
            scale_d=0.5,
            offset_d=-3,
            scale_w=(0.25,),
            offset_w=(0,),
            skip_fusion=False,
            dst_type="INT8",
            act_type="INT16",
            wts_type="INT4",
            fakequant_precision_mode="FORCE_FP16_QUANT",
            scale_h=0.125,
            offset_h=4,
            scale_r=(1.0,),
            offset_r=(0,),
        ),
    ),
    "onnx": (
        'scale_d: 0.5 offset_d: 0 is_tensor_quantize: true op_data_type: "FLOAT16" act_type: "INT8"',
        LayerRecord(scale_d=0.5, offset_d=0, is_tensor_quantize=True, op_data_type="FLOAT16", act_type="INT8"),
    ),
    "caffe": (
        "scale_d: 0.5 offset_d: 0 scale_w: 2 offset_w: 0 channels: 3 height: 224 width: 220 skip_fusion: true",
        LayerRecord(
            scale_d=0.5,
            offset_d=0,
            scale_w=(2.0,),
            offset_w=(0,),
            channels=3,
            height=224,
            width=220,
            skip_fusion=True,
        ),
    ),
    "nuq": ("cluster: " + str(list(range(-16, 16))), LayerRecord(cluster=tuple(range(-16, 16)))),
    "empty": (
        "skip_fusion: true tensor_balance_factor: 2",
        LayerRecord(skip_fusion=True, tensor_balance_factor=(2.0,)),
    ),
}


@pytest.mark.parametrize("dialect", DIALECTS)
def test_dialect(dialect: str) -> None:
    text, layer = DIALECTS[dialect]
    loaded = parse_record(f'record {{ key: "node:1" value {{ {text} }} }}')
    assert loaded.record.layers["node:1"] == layer
    assert loaded.findings == ()
    assert layer.is_empty == (dialect == "empty")


def test_shift_bit_is_read_and_ignored() -> None:
    loaded = parse_record('record {\nkey: "a"\nvalue {\nscale_d: 1\nshift_bit: 3\n}\n}')
    assert loaded.record.layers["a"].shift_bit == (3,)
    (finding,) = loaded.findings
    assert str(finding).startswith('line 5, "a": shift_bit belongs to joint quantization')
    assert finding.severity is Severity.WARNING


def test_kv_cache() -> None:
    text = 'record { key: "k" kv_cache_value { scale: [0.5, 0.25] offset: [0, -1] } }'
    assert parse_record(text).record.kv_cache == {"k": KVCacheRecord((0.5, 0.25), (0, -1))}


def test_layer_and_cache_of_one_key_may_stand_apart() -> None:
    text = 'record { key: "k" value { scale_d: 1 } } record { key: "k" kv_cache_value { scale: 1 offset: 0 } }'
    loaded = parse_record(text, strict=True)
    assert list(loaded.record.layers) == list(loaded.record.kv_cache) == ["k"]


@pytest.mark.parametrize("name", ["层/卷积", 'say "hi"', "it's", "back\\slash", "tab\t", "a:0", " padded ", "x\ny"])
def test_awkward_names(name: str) -> None:
    escaped = name.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    assert list(parse_record(f'record {{ key: "{escaped}" value {{}} }}').record.layers) == [name]


def test_order_of_first_writing_is_kept() -> None:
    text = "".join(f'record {{ key: "{key}" value {{ }} }}\n' for key in ["z", "a", "m", "a"])
    assert list(parse_record(text).record.layers) == ["z", "a", "m"]


DOUBLED_FIELD = 'record {\n key: "a"\n value {\n scale_d: 1\n scale_d: 2\n }\n}\n'
DOUBLED_ENTRY = 'record { key: "a" value { scale_d: 1 } }\n' * 2
BROKEN_LITERAL = 'record { key: "\na\n" value { } }'


@pytest.mark.parametrize(
    ("text", "line", "message"),
    [
        (DOUBLED_FIELD, 5, "scale_d stands twice, on line 4 and on line 5; the last one counts, delete the other"),
        (DOUBLED_ENTRY, 2, "a second entry says what line 1 says; delete one"),
        (BROKEN_LITERAL, 1, 'the string "a" is broken over 3 lines; it was joined, write it on one'),
    ],
)
def test_warning_is_an_error_when_strict(text: str, line: int, message: str) -> None:
    assert parse_record(text).findings == (Finding(line, "a", message, Severity.WARNING),)
    with pytest.raises(RecordError) as fault:
        parse_record(text, strict=True)
    assert str(fault.value) == f'<text>, line {line}, "a": {message}'


def test_last_of_a_doubled_field_counts() -> None:
    loaded = parse_record(DOUBLED_FIELD)
    assert loaded.record.layers["a"].scale_d == 2.0
    assert loaded.line_of("a", "scale_d") == 5
    assert loaded.line_of("a", "offset_d") == 1
    assert loaded.line_of("b") is None


FAULTS = [
    (
        'record { key: "a" value { scale_d: 1 } }\nrecord { key: "a" value { scale_d: 2 } }',
        2,
        "a",
        "disagrees with the",
    ),
    ("record { value { scale_d: 1 } }", 1, "", 'the entry has no key; give the layer\'s name: key: "name"'),
    ('record { key: "" value { } }', 1, "", "the entry has no key"),
    ('\nrecord { key: "a" }', 2, "a", "the entry has no value; give value { ... } or delete the entry"),
    ('record { key: "a"\nvalue { scale_q: 1 } }', 2, "a", "unknown field scale_q; did you mean scale_"),
    ('record { value {\noffset_d: 1.5 } key: "late" }', 2, "late", "offset_d takes a whole number, not 1.5"),
    ("prune_record {\nproducer { } }", 2, "", "name is missing and must be given"),
    ("prune_recrod { }", 1, "", "unknown field prune_recrod; did you mean prune_record?"),
]


@pytest.mark.parametrize(("text", "line", "entry", "message"), FAULTS)
def test_fault_names_source_line_and_entry(text: str, line: int, entry: str, message: str) -> None:
    with pytest.raises(RecordError) as fault:
        parse_record(text, source="plan.txt")
    where = f'plan.txt, line {line}, "{entry}": ' if entry else f"plan.txt, line {line}: "
    assert str(fault.value).startswith(where)
    assert message in str(fault.value)


def test_all_faults_are_listed_in_one_error() -> None:
    text = 'record { key: "a" value { scale_d: -1\noffset_d: 200 } }\nrecord { key: "b" value { scale_w: 0 } }'
    with pytest.raises(RecordError) as fault:
        parse_record(text, source="plan.txt")
    lines = str(fault.value).splitlines()
    assert lines[0] == "plan.txt has 3 faults:"
    assert [line.split(":")[0] for line in lines[1:]] == ['  line 1, "a"', '  line 2, "a"', '  line 3, "b"']


def test_long_list_of_faults_is_cut() -> None:
    text = "".join(f'record {{ key: "l{index}" value {{ scale_d: 0 }} }}\n' for index in range(130))
    with pytest.raises(RecordError, match=r"has 130 faults:(?s:.)*and 30 more$"):
        parse_record(text)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "holds no record; write it again, or give the path of another file"),
        (b"  \n# only a comment\n", "holds no record"),
        (b"\x00\x01\x02", "line 1, column 1: zero byte; this is a binary file, give its text form"),
        (b'record {\n key: "\xe9"', "line 2, column 8: byte 0xe9 is not UTF-8"),
        (
            QUANTIZATION.encode()[:-3],
            'line 14, column 1: the "record" opened here is never closed; the file is cut off',
        ),
        (b"{'scale_d': 1}", "line 1, column 1: expected the name of a field, found '{'"),
    ],
)
def test_file_that_is_no_record(tmp_path: Path, data: bytes, message: str) -> None:
    path = tmp_path / "r_record.txt"
    path.write_bytes(data)
    with pytest.raises(RecordError) as fault:
        load_record(path)
    assert str(fault.value).startswith(str(path))
    assert message in str(fault.value)
    assert "\n" not in str(fault.value)


def test_missing_file(tmp_path: Path) -> None:
    with pytest.raises(RecordError, match=r"none\.txt cannot be read: No such file or directory; give the path"):
        load_record(tmp_path / "none.txt")


def test_file_with_byte_order_mark_and_crlf(tmp_path: Path) -> None:
    path = tmp_path / "r.txt"
    path.write_bytes(b"\xef\xbb\xbf" + BALANCE.replace("\n", "\r\n").encode())
    loaded = load_record(path)
    assert loaded.record == parse_record(BALANCE).record
    assert loaded.lines == {"linear_1": 1}
    assert loaded.source == str(path)


SHA256 = "0123456789abcdef" * 4


@pytest.mark.parametrize(
    ("text", "header"),
    [
        ("# amct_onnx record, format 1\n", RecordHeader(1, None, WeightState.RECOMPUTABLE)),
        (
            f"# amct_onnx record, format 1\n# source sha256: {SHA256}\n# weights: modified\n",
            RecordHeader(1, SHA256, WeightState.MODIFIED),
        ),
        (
            "\r\n# kept: by me\r\n\r\n# amct_onnx record, format 1\r\n# weights: modified\r\n",
            RecordHeader(1, None, WeightState.MODIFIED),
        ),
    ],
)
def test_header(text: str, header: RecordHeader) -> None:
    assert parse_record(text).record.header == header


def test_header_stands_at_the_top_only() -> None:
    assert parse_record('record { key: "a" value { } }\n# amct_onnx record, format 1').record.header is None


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("# amct_onnx record, format 2", "line 1, column 1: the record has format 2, this amct_onnx reads up to 1"),
        ("# amct_onnx record, format 1\n# source sha256: 12", "line 2, column 1: source sha256 takes 64 hexadecimal"),
        (
            "# amct_onnx record, format 1\n# weights: odd",
            'line 2, column 1: weights is recomputable or modified, not "odd"',
        ),
    ],
)
def test_header_that_says_nothing(text: str, message: str) -> None:
    with pytest.raises(RecordError) as fault:
        parse_record(text)
    assert message in str(fault.value)
