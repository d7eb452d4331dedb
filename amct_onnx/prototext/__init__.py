"""Reading protobuf text format with the line of every field kept.

protobuf's own parser gives no line for a field that stands twice, refuses string literals broken over lines and stops
at the first fault. This reader is driven by the same descriptors, and knows nothing of records: it raises
:class:`TextError` for what is no text format at all, and collects everything else as problems of blocks.
"""

from amct_onnx.prototext.blocks import Block, Field, Problem
from amct_onnx.prototext.reader import read_text
from amct_onnx.prototext.schema import FieldSpec, Kind, MessageSpec, message_spec
from amct_onnx.prototext.source import Source, TextError, decode, is_model_name

__all__ = [
    "Block",
    "Field",
    "FieldSpec",
    "Kind",
    "MessageSpec",
    "Problem",
    "Source",
    "TextError",
    "decode",
    "is_model_name",
    "message_spec",
    "read_text",
]
