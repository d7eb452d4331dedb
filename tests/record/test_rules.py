"""Rules that need no model: each is refused on reading, with entry, line and remedy."""

from __future__ import annotations

import pytest

from amct_onnx.errors import RecordError
from amct_onnx.record import (
    FLT_EPSILON,
    Finding,
    KVCacheRecord,
    LayerRecord,
    Record,
    Severity,
    check_record,
    parse_record,
)

RECALIBRATE = "calibrate the layer again, or delete its entry to leave it in float"


def layer(fields: str, key: str = "conv") -> str:
    return f'record {{\nkey: "{key}"\nvalue {{\nskip_fusion: false\n{fields}\n}}\n}}\n'


BROKEN = [
    # scales lie in the open interval (0, inf)
    ("scale_d: 0", f"scale_d is 0; a scale is positive and finite: {RECALIBRATE}"),
    ("scale_d: -0.5", f"scale_d is -0.5; a scale is positive and finite: {RECALIBRATE}"),
    ("scale_d: nan", f"scale_d is nan; a scale is positive and finite: {RECALIBRATE}"),
    ("scale_d: inf", f"scale_d is inf; a scale is positive and finite: {RECALIBRATE}"),
    ("scale_d: 1e39", f"scale_d is inf; a scale is positive and finite: {RECALIBRATE}"),
    ("scale_d: 1e-60", f"scale_d is 0; a scale is positive and finite: {RECALIBRATE}"),
    ("scale_w: [1, 2, -3]", f"scale_w[2] is -3; a scale is positive and finite: {RECALIBRATE}"),
    ("scale_w: 0", f"scale_w is 0; a scale is positive and finite: {RECALIBRATE}"),
    ("scale_h: -1", f"scale_h is -1; a scale is positive and finite: {RECALIBRATE}"),
    ("scale_r: [nan, 1]", f"scale_r[0] is nan; a scale is positive and finite: {RECALIBRATE}"),
    # offsets lie in the range of the activation's type
    ("offset_d: 128", "offset_d holds 128; of INT8 it takes -128 to 127: correct it"),
    ("offset_d: -129", "offset_d holds -129; of INT8 it takes -128 to 127: correct it"),
    ('offset_d: 32768 act_type: "INT16"', "offset_d holds 32768; of INT16 it takes -32768 to 32767: correct it"),
    ('offset_d: 8 act_type: "INT4"', "offset_d holds 8; of INT4 it takes -8 to 7: correct it"),
    ('offset_d: -9 dst_type: "INT4"', "offset_d holds -9; of INT4 it takes -8 to 7: correct it"),
    ("offset_h: 200", "offset_h holds 200; of INT8 it takes -128 to 127: correct it"),
    # weights are symmetric
    ("offset_w: [0, 5]", "offset_w holds 5; weights are quantized symmetrically: every offset_w is 0"),
    ("offset_r: -1", "offset_r holds -1; weights are quantized symmetrically: every offset_r is 0"),
    # one offset to each scale
    (
        "offset_w: [0, 0, 0] scale_w: [1, 2]",
        "scale_w has length 2 and offset_w has length 3; give one offset to each scale",
    ),
    ("offset_r: 0 scale_r: [1, 2]", "scale_r has length 2 and offset_r has length 1; give one offset to each scale"),
    # types
    ('dst_type: "INT16"', 'dst_type is "INT16"; write one of INT8, INT4, or delete the field'),
    ('act_type: "UINT8"', 'act_type is "UINT8"; write one of INT4, INT8, INT16, or delete the field'),
    ('wts_type: "INT16"', 'wts_type is "INT16"; write one of INT4, INT6, INT7, INT8, or delete the field'),
    ('wts_type: "int8"', 'wts_type is "int8"; write one of INT4, INT6, INT7, INT8, or delete the field'),
    (
        'fakequant_precision_mode: "FP16"',
        'fakequant_precision_mode is "FP16"; write one of DEFAULT, FORCE_FP16_QUANT, or delete the field',
    ),
    # clusters
    (f"cluster: {[0] * 15}", "cluster has length 15; it takes 16 to 32: correct or delete them"),
    (f"cluster: {[0] * 33}", "cluster has length 33; it takes 16 to 32: correct or delete them"),
    (f"cluster: {[0] * 15 + [128]}", "cluster holds 128; of INT8 it takes -128 to 127: correct it"),
    # balance factors
    (
        "tensor_balance_factor: [1, 1e-8]",
        "tensor_balance_factor[1] is 9.99999994e-09; a factor lies from 1.1920929e-07 to 8388608: balance the layer "
        "again, or delete its factors",
    ),
    ("tensor_balance_factor: 8388609", "tensor_balance_factor[0] is 8388609; a factor lies from 1.1920929e-07"),
    ("tensor_balance_factor: nan", "tensor_balance_factor[0] is nan; a factor lies from"),
    # quantized inputs
    ("is_tensor_quantize: true", 'is_tensor_quantize asks for a key "node:index" that names an input; correct the key'),
]


@pytest.mark.parametrize(("fields", "message"), BROKEN)
def test_rule_on_values(fields: str, message: str) -> None:
    with pytest.raises(RecordError) as fault:
        parse_record(layer(fields), source="r.txt")
    assert str(fault.value).startswith(f'r.txt, line 5, "conv": {message}')


KEPT = [
    "scale_d: 1.1754943508222875e-38",
    "offset_d: -128 offset_h: 127",
    'offset_d: -32768 act_type: "INT16"',
    'offset_d: 200 dst_type: "INT8" act_type: "INT16"',
    "tensor_balance_factor: [1.1920928955078125e-07, 8388608]",
    "scale_w: [1, 2]",
    f"cluster: {[-128] * 16}",
    'act_type: "INT4" wts_type: "INT6" dst_type: "INT4" fakequant_precision_mode: "DEFAULT"',
    "",
]


@pytest.mark.parametrize("fields", KEPT)
def test_values_within_the_rules(fields: str) -> None:
    findings = parse_record(layer(fields)).findings
    assert not [finding for finding in findings if finding.severity is Severity.ERROR]


@pytest.mark.parametrize(
    ("scale", "usable"),
    [(FLT_EPSILON, False), (1.1920931e-07, True), (8388608.0, True), (8388609.0, False)],
)
def test_scale_without_a_usable_inverse_is_a_warning(scale: float, usable: bool) -> None:
    findings = parse_record(layer(f"scale_d: {scale!r}")).findings
    assert (findings == ()) == usable
    for finding in findings:
        assert (finding.line, finding.entry, finding.severity) == (5, "conv", Severity.WARNING)
        assert (
            "devices multiply by its inverse and take scales above 1.1920929e-07 and up to 8388608" in finding.message
        )


def test_weight_fields_of_a_quantized_input_are_ignored() -> None:
    (finding,) = parse_record(layer("scale_w: 1 offset_w: 0 is_tensor_quantize: true", "add:1")).findings
    assert finding.severity is Severity.WARNING
    assert "scale_w and offset_w are ignored and may be deleted" in finding.message


@pytest.mark.parametrize(
    ("fields", "line", "message"),
    [
        ("offset: 0", 1, "scale is missing; a cache gives scale and offset, in equal number"),
        (
            "scale: 1\nscale: 2\noffset: 0",
            6,
            "scale has length 2 and offset has length 1; give one offset to each scale",
        ),
        ("scale: 0\noffset: 0", 4, "scale is 0; a scale is positive and finite"),
        ("scale: 1\noffset: -200", 5, "offset holds -200; of INT8 it takes -128 to 127"),
    ],
)
def test_rule_on_caches(fields: str, line: int, message: str) -> None:
    with pytest.raises(RecordError) as fault:
        parse_record(f'record {{\nkey: "k_proj"\nkv_cache_value {{\n{fields}\n}}\n}}')
    assert f'line {line}, "k_proj": {message}' in str(fault.value)


def test_record_made_in_memory_is_checked_without_lines() -> None:
    record = Record({"a": LayerRecord(scale_d=-1.0)}, {"b": KVCacheRecord((1.0,), (0,))})
    assert check_record(record) == (
        Finding(None, "a", f"scale_d is -1; a scale is positive and finite: {RECALIBRATE}", Severity.ERROR),
    )


def test_half_written_record_is_no_fault() -> None:
    record = Record({"a": LayerRecord(scale_w=(1.0,), offset_w=(0,)), "b": LayerRecord(scale_d=1.0, offset_d=0)})
    assert check_record(record) == ()
