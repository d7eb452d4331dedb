"""The digest: equal for one model however it is stored, different for any two models."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import ModelProto, TensorProto, helper, numpy_helper

from amct_onnx.graph import digest, read_model
from amct_onnx.graph.weights import StoredValues
from tests.models import normal, parse

BODY = """
    k = Constant<value = float[3] {1.0, 2.0, 3.0}>()  s = Add(x, k)
    y = If(c) <then_branch = a () => (float[2,3] t) <float[3] w = {4.0, 5.0, 6.0}> { t = Mul(s, w) },
               else_branch = b () => (float[2,3] e) { e = Add(s, big) }>
"""


def model() -> ModelProto:
    return parse(BODY, "float[2,3] x, bool c", weights={"big": normal(3)})


def as_float_data(proto: ModelProto) -> ModelProto:
    values = numpy_helper.to_array(proto.graph.initializer[0])
    proto.graph.initializer[0].CopyFrom(helper.make_tensor("big", TensorProto.FLOAT, [3], values))
    return proto


def as_raw_data(proto: ModelProto) -> ModelProto:
    for tensor in (proto.graph.node[0].attribute[0].t, proto.graph.node[2].attribute[0].g.initializer[0]):
        name = tensor.name
        tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor)))
        tensor.name = name
    return proto


def test_it_is_a_sha256() -> None:
    assert re.fullmatch("[0-9a-f]{64}", digest(model(), None))


def test_storage_does_not_matter(tmp_path: Path) -> None:
    expected = digest(model(), None)
    assert digest(as_float_data(model()), None) == expected
    assert digest(as_raw_data(model()), None) == expected
    onnx.save_model(model(), str(tmp_path / "inline.onnx"))
    assert digest(*read_model(tmp_path / "inline.onnx")) == expected
    options = {"save_as_external_data": True, "size_threshold": 0, "convert_attribute": True}
    onnx.save_model(as_raw_data(model()), str(tmp_path / "external.onnx"), **options)
    assert digest(*read_model(tmp_path / "external.onnx")) == expected
    assert len(list(tmp_path.iterdir())) > 2


def poke_weight(proto: ModelProto) -> None:
    values = numpy_helper.to_array(proto.graph.initializer[0]).copy()
    values[2] = np.nextafter(values[2], 1, dtype=np.float32)
    proto.graph.initializer[0].CopyFrom(numpy_helper.from_array(values, "big"))


def poke_constant(proto: ModelProto) -> None:
    proto.graph.node[0].attribute[0].t.float_data[1] = 9.0


def poke_body_weight(proto: ModelProto) -> None:
    proto.graph.node[2].attribute[0].g.initializer[0].float_data[0] = 9.0


def poke_operator(proto: ModelProto) -> None:
    proto.graph.node[1].op_type = "Sub"


def poke_body_operator(proto: ModelProto) -> None:
    proto.graph.node[2].attribute[1].g.node[0].op_type = "Sub"


def poke_name(proto: ModelProto) -> None:
    proto.graph.node[1].name = "other"


def poke_opset(proto: ModelProto) -> None:
    proto.opset_import[0].version = 18


def poke_metadata(proto: ModelProto) -> None:
    proto.metadata_props.add(key="k", value="v")


def poke_shape(proto: ModelProto) -> None:
    proto.graph.initializer[0].dims[:] = [1, 3]


@pytest.mark.parametrize(
    "poke",
    [
        poke_weight,
        poke_constant,
        poke_body_weight,
        poke_operator,
        poke_body_operator,
        poke_name,
        poke_opset,
        poke_metadata,
        poke_shape,
    ],
)
def test_any_change_matters(poke: Callable[[ModelProto], None]) -> None:
    changed = model()
    poke(changed)
    assert digest(changed, None) != digest(model(), None)


def test_strings_matter() -> None:
    def with_strings(*texts: str) -> ModelProto:
        proto = parse("y = custom.Op(x, s)", domains='"custom": 1')
        proto.graph.initializer.append(helper.make_tensor("s", TensorProto.STRING, [2], [t.encode() for t in texts]))
        return proto

    assert digest(with_strings("ab", "c"), None) != digest(with_strings("a", "bc"), None)


def test_external_weights_are_hashed_where_they_lie(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The bytes go from the mapped file into the hash; no array is made of them."""
    options = {"save_as_external_data": True, "size_threshold": 0}
    onnx.save_model(parse("y = Add(x, w)", weights={"w": normal(3)}), str(tmp_path / "m.onnx"), **options)

    def refuse(self: StoredValues) -> None:
        raise AssertionError("loaded")

    monkeypatch.setattr(StoredValues, "load", refuse)
    proto, folder = read_model(tmp_path / "m.onnx")
    stored = StoredValues(proto.graph.initializer[0], folder)
    assert not stored.stored_bytes().flags.owndata
    digest(proto, folder)
