"""The reader of protobuf text: protobuf's own parser is the oracle for legal text, messages are typed in."""

from __future__ import annotations

import random
import string
from typing import Any

import pytest
from google.protobuf import text_format
from google.protobuf.message import Message

from amct_onnx.proto import scale_offset_record as schema
from amct_onnx.prototext import Block, Kind, MessageSpec, Source, TextError, decode, message_spec, read_text

SPEC = message_spec(schema.ScaleOffsetRecord.DESCRIPTOR)
NAMES = [
    "conv1",
    "/layer1/layer1.0/Conv",
    "层.一",
    "a b",
    'quo"te',
    "apo's",
    "back\\slash",
    "tab\tnew\nline",
    "a:0",
    "é\x01",
]
WORDS = string.ascii_letters + string.digits


def read(text: str) -> Block:
    return read_text(Source(text), SPEC)


def as_message(block: Block, spec: MessageSpec, message: Message) -> Any:
    """Fill a message with what a block holds, so that protobuf can compare it."""
    for name, found in block.fields.items():
        field = spec.fields[name]
        for value in found.values:
            if field.message is not None:
                target = getattr(message, name)
                as_message(value, field.message, target.add() if field.repeated else target)
                if not field.repeated:
                    target.SetInParent()
                continue
            if field.kind is Kind.ENUM:
                value = next(number for number, label in field.names.items() if label == value)
            if field.repeated:
                getattr(message, name).append(value)
            else:
                setattr(message, name, value)
    return message


def random_value(rng: random.Random, kind: Kind, bounds: tuple[int, int]) -> Any:
    if kind is Kind.FLOAT:
        return rng.choice([0.0, -0.0, 1.0, rng.random(), -rng.random() * 1e-30, rng.random() * 1e38, float("inf")])
    if kind is Kind.INT:
        return rng.choice([*bounds, 0, rng.randint(*bounds), 7])
    if kind is Kind.BOOL:
        return rng.random() < 0.5
    if kind is Kind.ENUM:
        return rng.randrange(7)
    text = rng.choice([*NAMES, "".join(rng.choices(WORDS, k=8))])
    return text if kind is Kind.STRING else text.encode()


def random_message(rng: random.Random, spec: MessageSpec, message: Message) -> Message:
    for field in spec.fields.values():
        if not field.required and rng.random() < 0.4:
            continue
        for _ in range(rng.randrange(4) if field.repeated else 1):
            if field.message is not None:
                target = getattr(message, field.name)
                child = target.add() if field.repeated else target
                child.SetInParent()
                random_message(rng, field.message, child)
            elif field.repeated:
                getattr(message, field.name).append(random_value(rng, field.kind, field.bounds))
            else:
                setattr(message, field.name, random_value(rng, field.kind, field.bounds))
    return message


STYLES = [
    {"as_utf8": True},
    {"as_utf8": False},
    {"as_one_line": True},
    {"pointy_brackets": True, "as_utf8": True},
    {"use_short_repeated_primitives": True},
    {"use_index_order": True},
]


@pytest.mark.parametrize("style", STYLES, ids=lambda style: "-".join(style))
@pytest.mark.parametrize("seed", range(10))
def test_reads_what_protobuf_prints(seed: int, style: dict[str, bool]) -> None:
    message = random_message(random.Random(seed), SPEC, schema.ScaleOffsetRecord())
    block = read(text_format.MessageToString(message, **style))
    assert not list(block.all_problems())
    assert as_message(block, SPEC, schema.ScaleOffsetRecord()) == message


LAYER = 'record {{ key: "a" value {{ {} }} }}'
LEGAL = [
    "record{key:'a'value{scale_d:1}}",
    "record: { key: 'a', value: { scale_d: 1; offset_d: 2, }; };",
    "record <key: 'a' value <scale_d: 1> >",
    "record [ { key: 'a' }, < key: 'b' > ]",
    "record: []",
    "\r\nrecord {\r\n\tkey: 'a'\r\n\tvalue {\r\n\t}\r\n}\r\n",
    "# top\nrecord { # after {\n key: 'a' # key: 'b'\n # }\n} # end",
    "record { key: 'a' # no newline at the end\n }#",
    "record { key: 'con' \"v\" '1' }",
    r"record { key: 'a\"b' } record { key: \"a'b\" }".replace(r"\"a'b\"", '"a\'b"'),
    r'record { key: "\a\b\f\n\r\t\v\\\'\"\101\x41" }',
    "record { key: '# no comment { }' }",
    LAYER.format("scale_w: [1, 2.5, -3e-1] scale_w: 4 scale_w: []"),
    LAYER.format("scale_d: .5 scale_w: 5. scale_w: 1e-3f scale_w: 2f scale_w: 1.5e+3"),
    LAYER.format("scale_w: inf scale_w: -inf scale_w: Infinity scale_w: -INFINITYF scale_w: 1e999 scale_w: 1e-99"),
    LAYER.format("offset_d: -0x1F offset_w: 0x7fffffff offset_w: -2147483648 offset_w: 010 offset_w: -0"),
    LAYER.format("skip_fusion: t is_tensor_quantize: False"),
    LAYER.format("skip_fusion: 1 is_tensor_quantize: 0"),
    "prune_record { producer { name: 'a' attr { type: 5 } attr { type: INTS ints: -9223372036854775808 } } }",
    r"prune_record { producer { name: 'a' attr { s: '\xff\0' } } }",
    "",
]


@pytest.mark.parametrize("text", LEGAL)
def test_reads_what_protobuf_reads(text: str) -> None:
    block = read(text)
    assert not list(block.all_problems())
    found = as_message(block, SPEC, schema.ScaleOffsetRecord())
    assert found == text_format.Parse(text, schema.ScaleOffsetRecord())


SYNTAX_FAULTS = [
    ("record {\n  key: 'a'\n", 1, 1, 'the "record" opened here is never closed; the file is cut off'),
    ("record {\n  key: 'a'\n  value {\n scale_d: 1", 3, 3, 'the "value" opened here is never closed'),
    ("record {\n  key: 'a'\n}\n}\n", 4, 1, 'this "}" does not close what was opened'),
    ("record {\n  key: 'a' >\n", 2, 12, 'this ">" does not close what was opened'),
    ("record {\n  key 'a'\n}", 2, 7, 'expected ":" after key, found "\'"'),
    ("record {\n  key:\n}", 3, 1, "expected a quoted string for key, found '}'"),
    (
        "record { key: 'a' value { scale_d:",
        1,
        35,
        "expected a number for scale_d, found the end of the file; it is cut",
    ),
    ("record { key: 'a' value { scale_d: +1 } }", 1, 36, "expected a number for scale_d, found '+'"),
    ("record { key: 'a' value { scale_d: { } } }", 1, 36, "expected a number for scale_d, found '{'"),
    ("record { key: 'a' value { scale_w: [1 2] } }", 1, 39, 'expected "," or "]" in the list of scale_w, found \'2\''),
    ("record { key: 'a' value { scale_w: [1,", 1, 39, "expected a number for scale_w, found the end of the file"),
    ("record { key: 'a' value { scale_w: [, 1] } }", 1, 37, "expected a number for scale_w, found ','"),
    ("record { key: 'a' value { scale_w: [1, ] } }", 1, 40, "expected a number for scale_w, found ']'"),
    ("record }", 1, 8, "expected a block in braces for record, found '}'"),
    ("[some.extension]: 1", 1, 1, "expected the name of a field, found '['"),
    ("PK\x03\x04", 1, 3, "expected a value, found '\\x03'"),
    ("record {\n  key: 'a\n}\n", 2, 8, "the string opened here has no closing quote on its line or the next two"),
    ('record {\nkey: "a\nvalue {\nscale_d: 1\n}\n}\nrecord {\nkey: "b"', 2, 6, "the string opened here has no closing"),
    ('record {\nkey: "a\n}\nrecord { key: "b" }', 4, 17, "the string opened on line 2 may lack its closing quote"),
    ("other: {\n a { b: [1, {c: 'x'}] }", 1, 8, 'the "{" opened here is never closed; the file is cut off'),
    ("other: }", 1, 8, "expected a value, found '}'"),
]


@pytest.mark.parametrize(("text", "line", "column", "message"), SYNTAX_FAULTS)
def test_syntax_fault_is_placed(text: str, line: int, column: int, message: str) -> None:
    with pytest.raises(TextError) as fault:
        read(text)
    assert (fault.value.line, fault.value.column) == (line, column)
    assert message in fault.value.message


PROBLEMS = [
    (LAYER.format("\n scale_x: 1"), 2, "unknown field scale_x; did you mean scale_w?"),
    ("\n\nlayers { a { b: 'c' } d: [1] }", 3, "unknown field layers; known are record, prune_record"),
    (LAYER.format("\n offset_d: 1.5"), 2, "offset_d takes a whole number, not 1.5"),
    (
        LAYER.format("\n offset_d: 2147483648"),
        2,
        "2147483648 does not fit offset_d, which holds -2147483648 to 2147483647",
    ),
    (LAYER.format("\n channels: -1"), 2, "-1 does not fit channels, which holds 0 to 4294967295"),
    (LAYER.format("\n scale_d: 1_0"), 2, "scale_d takes a number, not 1_0"),
    (LAYER.format("\n scale_d: 0948"), 2, "scale_d takes a number, not 0948"),
    (LAYER.format("\n scale_d: -00.9"), 2, "scale_d takes a number, not -00.9"),
    (LAYER.format("\n scale_d: abc"), 2, "scale_d takes a number, not abc"),
    (LAYER.format("\n scale_d: 1-2"), 2, "scale_d takes a number, not 1-2"),
    (LAYER.format("\n scale_d: 'x'"), 2, 'scale_d takes a number, not the string "x"'),
    (LAYER.format("\n scale_d: [1]"), 2, "scale_d takes one value, not a list"),
    (LAYER.format("\n scale_w: [1,\n x]"), 3, "scale_w takes a number, not x"),
    (LAYER.format("\n offset_w: 089"), 2, "offset_w takes a whole number, not 089"),
    (LAYER.format("\n act_type: INT8"), 2, "act_type takes a quoted string, not INT8"),
    (LAYER.format("\n skip_fusion: maybe"), 2, "skip_fusion takes true or false, not maybe"),
    ("record: 5", 1, "record takes a block in braces, not 5"),
    ("record {\n key: 'a\\q' }", 2, "a backslash begins an unknown escape; write it twice"),
    ("record {\n key: '\\377' }", 2, "do not spell UTF-8"),
    ("record {\n key: '\\ud800' }", 2, r"\ud800 names no character"),
    ("prune_record {\n producer { } }", 2, "name is missing and must be given"),
    ("prune_record { producer { name: 'a' attr {\n type: LIST } } }", 2, "type takes one of UNDEFINED, FLOAT, INT"),
    ("record { key: 'a' value { }\n value { } }", 2, "value stands twice, on line 1 and on line 2; a closing brace"),
]


@pytest.mark.parametrize(("text", "line", "message"), PROBLEMS)
def test_problem_is_collected(text: str, line: int, message: str) -> None:
    (problem,) = read(text).all_problems()
    assert problem.line == line
    assert message in problem.message
    assert not problem.warning


def test_last_of_a_doubled_field_counts() -> None:
    block = read(LAYER.format("\n scale_d: 1\n offset_d: 3\n scale_d: 2\n"))
    value = block.all("record")[0].get("value")
    assert value.get("scale_d") == 2.0
    assert value.fields["scale_d"].line == 4
    (problem,) = block.all_problems()
    assert (problem.line, problem.warning) == (4, True)
    assert problem.message == "scale_d stands twice, on line 2 and on line 4; the last one counts, delete the other"


@pytest.mark.parametrize(
    ("literal", "value"),
    [('"\nconv1\n"', "conv1"), ('"con\n  v1"', "conv1"), ('" \r\n conv1 \r\n "', "conv1"), ("'a\n'  'b'", "ab")],
)
def test_broken_literal_is_joined(literal: str, value: str) -> None:
    block = read("record {\n key: " + literal + "\n}")
    assert block.all("record")[0].get("key") == value
    (problem,) = block.all_problems()
    assert (problem.line, problem.warning) == (2, True)
    assert "was joined, write it on one" in problem.message


def test_every_escape_is_read() -> None:
    block = read(r"""record { key: "\a\b\f\n\r\t\v\\\'\"\?\0\101\X41\u4e2d\U0001F600" }""")
    assert block.all("record")[0].get("key") == "\a\b\f\n\r\t\v\\'\"?\0AA\u4e2d\U0001f600"


def test_long_tokens_are_cut_in_messages() -> None:
    (problem,) = read(LAYER.format("offset_d: " + "9" * 5000)).all_problems()
    assert problem.message == "offset_d takes a whole number, not " + "9" * 40 + "..."


def test_lines_are_those_of_the_text() -> None:
    block = read("# c\r\n\r\nrecord {\r\n key: 'a'\r\n value {\r\n scale_w: 1\r\n scale_w: 2\r\n}\r\n}")
    record = block.all("record")[0]
    assert (record.line, record.fields["key"].line) == (3, 4)
    assert record.get("value").fields["scale_w"].line == 6


@pytest.mark.parametrize("pad", [" " * 200_000 + "!", "# " * 100_000, "#\n" * 100_000 + "!", "'" + "\\" * 200_001])
def test_hostile_text_is_refused_quickly(pad: str) -> None:
    with pytest.raises(TextError):
        read("record { key: 'a' " + pad)


@pytest.mark.parametrize(
    ("data", "line", "column", "message"),
    [
        (b"record {\n key: '\xff'", 2, 8, "byte 0xff is not UTF-8"),
        ("record".encode("utf-16"), 1, 1, "byte 0xff is not UTF-8"),
        (b"\n\n ab\0c", 3, 4, "zero byte; this is a binary file"),
    ],
)
def test_bytes_that_are_no_text(data: bytes, line: int, column: int, message: str) -> None:
    with pytest.raises(TextError) as fault:
        decode(data)
    assert (fault.value.line, fault.value.column) == (line, column)
    assert message in fault.value.message


def test_many_unknown_fields_are_read_quickly() -> None:
    problems = list(read(LAYER.format("scale_ww: 1\n" * 50_000)).all_problems())
    assert (len(problems), problems[-1].line) == (50_000, 50_000)


def test_byte_order_mark_is_dropped() -> None:
    assert decode(b"\xef\xbb\xbfrecord {}") == "record {}"
