"""Prune records: attributes, masks, and their rules on reading and against a model."""

from __future__ import annotations

import numpy as np
import pytest

from amct_onnx.errors import RecordError
from amct_onnx.record import (
    AttrType,
    LayerFacts,
    PruneAttr,
    PruneNode,
    PruneRecord,
    Record,
    check_record,
    format_record,
    pack_mask,
    parse_record,
    unpack_mask,
    validate_record,
)


def node(name: str = "c1", **attrs: object) -> PruneNode:
    made = PruneNode(name)
    for attr, value in attrs.items():
        made = made.with_attr(attr, value)  # type: ignore[arg-type]
    return made


PRODUCER = node("c1", type="Conv", begin=0, end=8, prune_index=(1, 5))
CONSUMER = node("c2", type="Conv", begin=0, end=8, group=2, prune_group=4, prune_index=(1, 5))
CASCADE = PruneRecord((node("c0", type="Conv", begin=0, end=8, prune_index=(1, 5)),), (CONSUMER,))


def test_attributes_are_typed() -> None:
    assert (CONSUMER.op_type, CONSUMER.begin, CONSUMER.end) == ("Conv", 0, 8)
    assert (CONSUMER.group, CONSUMER.prune_group, CONSUMER.prune_index) == (2, 4, (1, 5))
    assert CONSUMER.mask_shape is CONSUMER.selective_mask is CONSUMER.attr("nothing") is None
    assert PruneNode("a", (PruneAttr("begin", AttrType.STRING, "x"),)).begin is None


def test_attribute_set_again_keeps_its_place() -> None:
    changed = PRODUCER.with_attr("begin", 4)
    assert [attr.name for attr in changed.attrs] == [attr.name for attr in PRODUCER.attrs]
    assert changed.begin == 4


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        (1, AttrType.INT),
        (0.5, AttrType.FLOAT),
        ("s", AttrType.STRING),
        ((), AttrType.INTS),
        ((1, 2), AttrType.INTS),
        ((0.5,), AttrType.FLOATS),
        (("a", "层"), AttrType.STRINGS),
    ],
)
def test_attribute_goes_through_text(value: object, kind: AttrType) -> None:
    attr = PruneAttr.of("x", value)  # type: ignore[arg-type]
    assert attr.type is kind
    record = Record(prune=(PruneRecord((PRODUCER.with_attr("x", value),), (CONSUMER,)),))  # type: ignore[arg-type]
    assert parse_record(format_record(record)).record == record


def test_mask_bits_are_packed_first_bit_highest() -> None:
    mask = np.zeros((2, 40), dtype=np.bool_)
    mask[0, 0] = mask[0, 9] = mask[1, 39] = True
    # bit 0 -> 0x80 of byte 0, bit 9 -> 0x40 of byte 1, bit 79 -> 0x01 of byte 9 (byte 1 of the second word)
    assert pack_mask(mask) == (0x4080, 0x0100)


@pytest.mark.parametrize("shape", [(1,), (64,), (65,), (3, 3, 3, 32)])
def test_mask_goes_through_words(shape: tuple[int, ...]) -> None:
    mask = np.random.default_rng(0).random(shape) < 0.5
    words = pack_mask(mask)
    assert len(words) == -(-mask.size // 64)
    assert np.array_equal(unpack_mask(words, shape), mask)
    selective = PruneRecord(selective_prune=node("c1", mask_shape=shape, selective_mask=words))
    assert parse_record(format_record(Record(prune=(selective,)))).record.prune == (selective,)


def test_mask_of_another_shape_is_refused() -> None:
    with pytest.raises(ValueError, match=r"shape \(3, 50\) takes 3 words, not 1"):
        unpack_mask((0,), (3, 50))


BROKEN = [
    (PruneRecord(), "", "a prune_record holds either producers with their consumers or one selective_prune"),
    (PruneRecord((PRODUCER,), (), node(mask_shape=(4,))), "", "a prune_record holds either producers with their"),
    (PruneRecord((PRODUCER,)), "", "the prune_record has no consumer; a cascade names both: add it or delete"),
    (PruneRecord((), (CONSUMER,)), "", "the prune_record has no producer"),
    (PruneRecord((node(begin=0),), (CONSUMER,)), "c1", "producer: attr end is missing; give the range of channels"),
    (PruneRecord((PRODUCER,), (node("c2", end=8),)), "c2", "consumer: attr begin is missing"),
    (PruneRecord((node(begin=8, end=8),), (CONSUMER,)), "c1", "begin is 8 and end is 8; a range has 0 <= begin < end"),
    (PruneRecord((node(begin=-1, end=8),), (CONSUMER,)), "c1", "begin is -1 and end is 8; a range has"),
    (PruneRecord((PRODUCER.with_attr("prune_index", (8,)),), (CONSUMER,)), "c1", "channel 8, outside its range [0, 8)"),
    (PruneRecord((PRODUCER.with_attr("prune_index", (1, 1)),), (CONSUMER,)), "c1", "names channel 1 twice; delete one"),
    (PruneRecord((PRODUCER.with_attr("prune_index", tuple(range(8))),), (CONSUMER,)), "c1", "keep at least one"),
    (PruneRecord((PRODUCER,), (CONSUMER.with_attr("group", 0),)), "c2", "group is 0; a convolution has 1 or more"),
    (PruneRecord((PRODUCER,), (CONSUMER.with_attr("prune_group", 0),)), "c2", "prune_group is 0; it divides the 8"),
    (
        PruneRecord((PRODUCER.with_attr("begin", "0"),), (CONSUMER,)),
        "c1",
        "begin has type STRING; it is written type: INT",
    ),
    (
        PruneRecord((PruneNode("c1", (*PRODUCER.attrs, PRODUCER.attrs[1])),), (CONSUMER,)),
        "c1",
        "attr begin stands 2 times; delete all but one",
    ),
    (PruneRecord(selective_prune=node(type="Conv")), "c1", "selective_prune: mask_shape is missing or holds a length"),
    (PruneRecord(selective_prune=node(mask_shape=(4, 0))), "c1", "mask_shape is missing or holds a length below 1"),
    (
        PruneRecord(selective_prune=node(mask_shape=(65,), selective_mask=(1,))),
        "c1",
        "selective_mask has 1 words; a mask of shape [65] takes 2: search the mask again",
    ),
]


@pytest.mark.parametrize(("prune", "entry", "message"), BROKEN)
def test_rule_on_values(prune: PruneRecord, entry: str, message: str) -> None:
    record = Record(prune=(CASCADE, prune))
    (finding,) = check_record(record)
    assert (finding.line, finding.entry) == (None, entry)
    assert message in finding.message
    printed = format_record(record)
    with pytest.raises(RecordError) as fault:
        parse_record(printed)
    (line,) = {int(word) for word in str(fault.value).replace(",", " ").replace(":", " ").split()[2:3]}
    assert printed.splitlines()[line - 1].strip().endswith("{")
    assert line > format_record(Record(prune=(CASCADE,))).count("\n")


@pytest.mark.parametrize(
    ("attr", "message"),
    [
        ("name: 'begin' i: 0", "attr takes a name and a type, one of FLOAT, INT, STRING, FLOATS, INTS, STRINGS"),
        ("type: INT i: 0", "attr takes a name and a type"),
        ("name: 'begin' type: UNDEFINED", "attr takes a name and a type"),
        ("name: 'begin' type: INT s: '0'", "attr begin: a value of type INT is written i: ..."),
        ("name: 'begin' type: INT", "attr begin has no value; give i: ..."),
        (r"name: 'type' type: STRING s: '\xff'", "attr type is not UTF-8; write its text as UTF-8"),
    ],
)
def test_attribute_that_says_nothing(attr: str, message: str) -> None:
    with pytest.raises(RecordError) as fault:
        parse_record(f"prune_record {{\nproducer {{\nname: 'c1'\nattr {{ {attr} }}\n}}\n}}")
    assert f'line 4, "c1": {message}' in str(fault.value)


FACTS = {"c1": LayerFacts(op_type="Conv", channels_out=8), "c2": LayerFacts(op_type="Conv", channels_in=8)}


@pytest.mark.parametrize(
    ("prune", "message"),
    [
        (
            PruneRecord((node("conv9", begin=0, end=8),), (CONSUMER,)),
            '"conv9": producer: the model has no such node; correct',
        ),
        (PruneRecord((PRODUCER,), (node("bn2", begin=0, end=8),)), '"bn2": consumer: the model has no such node'),
        (PruneRecord(selective_prune=node("x", mask_shape=(4,))), '"x": selective_prune: the model has no such node'),
        (
            PruneRecord((PRODUCER.with_attr("end", 16),), (CONSUMER,)),
            '"c1": producer: end is 16, but the Conv has 8 channels there; correct the range',
        ),
        (PruneRecord((PRODUCER,), (CONSUMER.with_attr("end", 12),)), '"c2": consumer: end is 12, but the Conv has 8'),
    ],
)
def test_rule_on_the_model(prune: PruneRecord, message: str) -> None:
    with pytest.raises(RecordError) as fault:
        validate_record(Record(prune=(prune,)), FACTS, nodes={"bn": 5})
    assert message in str(fault.value)


@pytest.mark.parametrize("prune", [PruneRecord((PRODUCER,), (CONSUMER,)), PruneRecord(selective_prune=node("c1"))])
def test_a_layer_that_stands_in_two_records(prune: PruneRecord) -> None:
    twice = [finding for finding in check_record(Record(prune=(prune, prune))) if "earlier" in finding.message]
    assert [finding.entry for finding in twice] == ["c1"]


def test_prune_record_that_fits() -> None:
    through = PruneRecord((PRODUCER,), (node("bn", type="BatchNormalization", begin=0, end=8), CONSUMER))
    assert validate_record(Record(prune=(CASCADE, through)), FACTS, nodes={"bn": 5, "c0": 2}) == ()
