"""The checked-in descriptor set and stubs match the schemas, and the classes made from them work."""

from __future__ import annotations

import subprocess
import sys
from typing import ClassVar

import pytest
from google.protobuf import descriptor_pool, text_format

from amct_onnx.proto.compile import FOLDER, compile_schemas, stub_text
from amct_onnx.proto.pool import message_classes, read_descriptor_set
from amct_onnx.proto.scale_offset_record import MapFiledEntry, ScaleOffsetRecord, SingleLayerRecord


def test_descriptor_set_is_what_protoc_makes() -> None:
    pytest.importorskip("grpc_tools")
    assert compile_schemas() == read_descriptor_set()


def test_every_schema_is_in_the_descriptor_set() -> None:
    assert [file.name for file in read_descriptor_set().file] == sorted(p.name for p in FOLDER.glob("*.proto"))


@pytest.mark.parametrize("file", read_descriptor_set().file, ids=lambda file: file.name)
def test_stub_is_up_to_date(file) -> None:
    assert (FOLDER / file.name).with_suffix(".pyi").read_text(encoding="utf-8") == stub_text(file)


def test_messages_parse_print_and_nest() -> None:
    message = text_format.Parse('record { key: "conv" value { scale_d: 0.5 scale_w: [1, 2] } }', ScaleOffsetRecord())
    assert message == ScaleOffsetRecord(
        record=[MapFiledEntry(key="conv", value=SingleLayerRecord(scale_d=0.5, scale_w=[1, 2]))]
    )


def test_skip_fusion_is_false_unless_said() -> None:
    assert SingleLayerRecord().skip_fusion is False


def test_default_pool_is_left_alone() -> None:
    with pytest.raises(KeyError):
        descriptor_pool.Default().FindMessageTypeByName("amct_onnx.ScaleOffsetRecord")


def test_unknown_schema_is_a_key_error() -> None:
    with pytest.raises(KeyError, match="nothing"):
        message_classes("amct_onnx.proto.nothing")


def test_import_needs_no_generator() -> None:
    code = "import sys, amct_onnx.proto.scale_offset_record; sys.exit('grpc_tools' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


class TestDialects:
    """Every field that a published dialect names exists under that name."""

    FIELDS: ClassVar = {
        "pytorch": "scale_d offset_d scale_w offset_w shift_bit tensor_balance_factor skip_fusion dst_type act_type "
        "wts_type fakequant_precision_mode scale_h offset_h scale_r offset_r",
        "onnx": "scale_d offset_d scale_w offset_w shift_bit skip_fusion is_tensor_quantize tensor_balance_factor "
        "op_data_type act_type wts_type",
        "caffe": "scale_d offset_d scale_w offset_w shift_bit channels height width skip_fusion",
    }

    @pytest.mark.parametrize("dialect", FIELDS)
    def test_fields(self, dialect: str) -> None:
        assert set(self.FIELDS[dialect].split()) <= set(SingleLayerRecord.DESCRIPTOR.fields_by_name)
