"""Every rule of records, one row each: what breaks it, and that the error names file, line, entry, rule and remedy.

More values of each rule stand in ``test_rules`` (what needs no model) and ``test_validate`` (what does).
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import pytest

from amct_onnx.errors import RecordError
from amct_onnx.record import LayerFacts, Severity, load_record, validate_record

CONV = LayerFacts(op_type="Conv", channels_out=3, channels_in=2)
FACTS: dict[str, LayerFacts | str] = {
    "conv": CONV,
    "pool": LayerFacts(op_type="AveragePool", has_weight=False),
    "lstm": LayerFacts(op_type="LSTM", gates=4, channels_out=8),
    "shared": "its weight is computed at run time",
}
NODES = {**dict.fromkeys(FACTS, 2), "add": 2, "relu": 1}

DATA = {"scale_d": "1", "offset_d": "0"}
FULL = {**DATA, "scale_w": "1", "offset_w": "0"}
RNN = {
    **DATA,
    "scale_w": "[1, 1, 1, 1]",
    "offset_w": "[0, 0, 0, 0]",
    "scale_h": "1",
    "offset_h": "0",
    "scale_r": "[1, 1, 1, 1]",
    "offset_r": "[0, 0, 0, 0]",
}
ENTRY = 1  # line of `record {`
FIRST = 4  # line of an entry's first field


class Row(NamedTuple):
    """One rule broken: the record's text, and what the error says."""

    rule: str
    text: str
    line: int
    entry: str
    says: str
    remedy: str


def entry(fields: dict[str, str], key: str = "conv") -> str:
    lines = "\n".join(f"{name}: {value}" for name, value in fields.items())
    return f'record {{\nkey: "{key}"\nvalue {{\n{lines}\n}}\n}}\n'


def broken(rule: str, fields: dict[str, str], field: str | None, says: str, remedy: str, key: str = "conv") -> Row:
    """A row about one field, which says on which line the error is to point; None means the entry's own line."""
    line = ENTRY if field is None else FIRST + list(fields).index(field)
    return Row(rule, entry(fields, key), line, key, says, remedy)


def prune(producer: str, consumer: str) -> str:
    """A prune record with its producer on line 2 and its consumer on line 3."""
    attrs = (
        'attr { name: "type" type: STRING s: "Conv" } attr { name: "begin" type: INT i: 0 } '
        'attr { name: "end" type: INT i: 2 }'
    )
    nodes = (f'{role} {{ name: "{name}" {attrs} }}' for role, name in (("producer", producer), ("consumer", consumer)))
    return "prune_record {\n" + "\n".join(nodes) + "\n}"


def without(fields: dict[str, str], name: str) -> dict[str, str]:
    return {key: value for key, value in fields.items() if key != name}


RECALIBRATE = "calibrate the layer again, or delete its entry"
FINISH = "finish its calibration, or delete the entry to leave it in float"
REBALANCE = "balance the layer again, or delete its factors"
DELETE_FIELD = "or delete the field"

ROWS = [
    # The entry.
    Row("key present", "record { value { } }", 1, "", "the entry has no key", "give the layer's name"),
    Row("value present", 'record { key: "conv" }', 1, "conv", "the entry has no value", "delete the entry"),
    broken("node of the model", FULL, None, "the model has no such node", 'did you mean "conv"?', "convv"),
    broken("layer that can be quantized", FULL, None, "cannot be quantized: its weight", "delete its entry", "shared"),
    broken("type that can be quantized", FULL, None, "it is of no type that can be", "delete its entry", "relu"),
    broken("input that exists", {"is_tensor_quantize": "true", **DATA}, None, '"add" has 2 inputs', "index", "add:2"),
    # Presence.
    *(
        broken(f"{name} present", without(FULL, name), None, f"{name} is missing; a quantized Conv gives", FINISH)
        for name in FULL
    ),
    *(
        broken(f"{name} present, recurrent", without(RNN, name), None, f"{name} is missing", FINISH, "lstm")
        for name in RNN
    ),
    *(
        broken(
            f"{name} present, input",
            {"is_tensor_quantize": "true", **without(DATA, name)},
            None,
            name,
            "calibrate again",
            "add:0",
        )
        for name in DATA
    ),
    # Types.
    broken("dst_type known", {**FULL, "dst_type": '"INT16"'}, "dst_type", "write one of INT8, INT4", DELETE_FIELD),
    broken("no INT4 for a pool", {**FULL, "dst_type": '"INT4"'}, "dst_type", "is INT4", "correct the type", "pool"),
    broken("act_type known", {**FULL, "act_type": '"FP8"'}, "act_type", "one of INT4, INT8, INT16", DELETE_FIELD),
    broken("wts_type known", {**FULL, "wts_type": '"INT5"'}, "wts_type", "one of INT4, INT6, INT7, INT8", DELETE_FIELD),
    # Lengths.
    broken(
        "as many offsets as scales", {**FULL, "offset_w": "[0, 0]"}, "offset_w", "has length 2", "one offset to each"
    ),
    broken(
        "one scale, or one per output channel",
        {**FULL, "scale_w": "[1, 1]", "offset_w": "[0, 0]"},
        "scale_w",
        "has length 2; this Conv takes 1, or 3 (one for each output channel)",
        "calibrate this model again",
    ),
    broken(
        "one scale per gate, or per gate and hidden channel",
        {**RNN, "scale_r": "[1]", "offset_r": "[0]"},
        "scale_r",
        "has length 1; this LSTM takes 4, or 8",
        "calibrate this model again",
        "lstm",
    ),
    # Offsets.
    broken(
        "offset_d within INT8", {**FULL, "offset_d": "128"}, "offset_d", "of INT8 it takes -128 to 127", "correct it"
    ),
    broken(
        "offset_d within INT16",
        {**FULL, "offset_d": "-32769", "act_type": '"INT16"'},
        "offset_d",
        "of INT16 it takes -32768 to 32767",
        "correct it",
    ),
    broken(
        "offset_d within INT4",
        {**FULL, "offset_d": "8", "act_type": '"INT4"'},
        "offset_d",
        "takes -8 to 7",
        "correct it",
    ),
    broken("offset_w zero", {**FULL, "offset_w": "1"}, "offset_w", "symmetrically", "every offset_w is 0"),
    broken("offset_h within INT8", {**RNN, "offset_h": "-129"}, "offset_h", "takes -128 to 127", "correct it", "lstm"),
    broken("offset_r zero", {**RNN, "offset_r": "[0, 0, 0, 7]"}, "offset_r", "holds 7", "every offset_r is 0", "lstm"),
    # Scales: above zero, finite, a number.
    *(
        broken(f"{name} is not {value}", {**RNN, name: value}, name, "is positive and finite", RECALIBRATE, "lstm")
        for name in ("scale_d", "scale_h")
        for value in ("0", "-1", "inf", "nan")
    ),
    *(
        broken(
            f"{name} holds no {value}",
            {**RNN, name: f"[1, 1, 1, {value}]"},
            name,
            f"{name}[3] is {value}; a scale is positive and finite",
            RECALIBRATE,
            "lstm",
        )
        for name in ("scale_w", "scale_r")
        for value in ("0", "-1", "inf", "nan")
    ),
    broken("scale_d has an inverse", {**FULL, "scale_d": "1e-7"}, "scale_d", "multiply by its inverse", RECALIBRATE),
    # Clusters.
    broken("16 clusters or more", {**FULL, "cluster": str([0] * 15)}, "cluster", "takes 16 to 32", "correct or delete"),
    broken(
        "32 clusters or fewer", {**FULL, "cluster": str([0] * 33)}, "cluster", "takes 16 to 32", "correct or delete"
    ),
    broken("clusters are INT8", {**FULL, "cluster": str([200] * 16)}, "cluster", "takes -128 to 127", "correct it"),
    # Balance factors.
    broken(
        "one factor per input channel",
        {**FULL, "tensor_balance_factor": "[1, 1, 1]"},
        "tensor_balance_factor",
        "has length 3; this Conv has 2 input channels",
        REBALANCE,
    ),
    *(
        broken(
            f"a factor is not {value}",
            {**FULL, "tensor_balance_factor": f"[1, {value}]"},
            "tensor_balance_factor",
            "a factor lies from 1.1920929e-07 to 8388608",
            REBALANCE,
        )
        for value in ("0", "1e-7", "8388609", "nan")
    ),
    broken(
        "no factors for a pool",
        {**FULL, "tensor_balance_factor": "[1]"},
        "tensor_balance_factor",
        "this AveragePool cannot be balanced",
        "delete tensor_balance_factor",
        "pool",
    ),
    # Pruning.
    Row(
        "producer is a node of the model",
        prune("gone", "conv"),
        2,
        "gone",
        "producer: the model has no such",
        "correct",
    ),
    Row(
        "consumer is a node of the model",
        prune("conv", "gone"),
        3,
        "gone",
        "consumer: the model has no such",
        "correct",
    ),
]


@pytest.mark.parametrize("row", ROWS, ids=[row.rule for row in ROWS])
def test_row(tmp_path: Path, row: Row) -> None:
    path = tmp_path / "net_record.txt"
    path.write_text(row.text)
    with pytest.raises(RecordError) as caught:
        validate_record(load_record(path), FACTS, nodes=NODES)
    message = str(caught.value)
    assert message.startswith(str(path))
    where = f'line {row.line}, "{row.entry}": ' if row.entry else f"line {row.line}: "
    (told,) = [line for line in message.splitlines() if where in line and row.says in line]
    assert row.remedy in told


# What is no record at all: nothing to name but the file, and the place where reading it ends.
FILES = [
    ("a file that is not there", None, "cannot be read: No such file or directory", "give the path of a record file"),
    ("no text", b"\x08\x01\x00", "line 1, column 3: zero byte", "this is a binary file, give its text form"),
    ("no record's text", b"scale: 3", "line 1: unknown field scale", "known are record, prune_record"),
    ("an open block", b'record { key: "a"', "is never closed", "the file is cut off"),
    ("no entry", b"\n", "holds no record", "write it again, or give the path of another file"),
]


@pytest.mark.parametrize(("content", "says", "remedy"), [row[1:] for row in FILES], ids=[row[0] for row in FILES])
def test_file(tmp_path: Path, content: bytes | None, says: str, remedy: str) -> None:
    path = tmp_path / "net_record.txt"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(RecordError) as caught:
        load_record(path)
    message = str(caught.value)
    assert message.startswith(str(path))
    assert says in message
    assert remedy in message
    assert "\n" not in message


# What is taken: the entry, what it means, and what the one warning says, if there is one.
TAKEN = [
    ("types missing are INT8", FULL, {"activation_type": "INT8", "weight_type": "INT8"}, ""),
    ("the older dst_type counts", {**FULL, "dst_type": '"INT4"'}, {"weight_type": "INT4"}, ""),
    ("shift_bit is ignored", {**FULL, "shift_bit": "3"}, {"shift_bit": (3,)}, "is ignored and may be deleted"),
    ("an empty entry leaves a layer in float", {"skip_fusion": "true"}, {"is_empty": True, "skip_fusion": True}, ""),
    ("skip_fusion is false where it is missing", FULL, {"skip_fusion": None}, ""),
]


@pytest.mark.parametrize(("fields", "means", "warns"), [row[1:] for row in TAKEN], ids=[row[0] for row in TAKEN])
def test_taken(tmp_path: Path, fields: dict[str, str], means: dict[str, object], warns: str) -> None:
    path = tmp_path / "net_record.txt"
    path.write_text(entry(fields))
    loaded = load_record(path)
    findings = validate_record(loaded, FACTS, nodes=NODES)
    assert {name: getattr(loaded.record.layers["conv"], name) for name in means} == means
    assert [finding.severity for finding in findings] == [Severity.WARNING] * bool(warns)
    assert all(warns in str(finding) for finding in findings)


def test_layers_without_an_entry_are_no_fault(tmp_path: Path) -> None:
    path = tmp_path / "net_record.txt"
    path.write_text(entry(FULL, "conv"))
    assert FACTS.keys() - load_record(path).record.layers.keys() == {"pool", "lstm", "shared"}
    assert validate_record(load_record(path), FACTS, nodes=NODES) == ()
