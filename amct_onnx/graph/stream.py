"""Serialize a model straight into a file, one weight at a time.

The result is byte for byte what protobuf's own deterministic serializer makes of the complete message, which would
need the weights twice in memory. Length-delimited fields are written by hand; every length is known beforehand.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, BinaryIO

from onnx import GraphProto, ModelProto, TensorProto

from amct_onnx.graph.protos import copy_fields
from amct_onnx.graph.weights import StoredValues, Values, stored_bytes

_LENGTH_DELIMITED = 2


@dataclass(frozen=True)
class Initializer:
    """One initializer on its way to a file.

    Attributes:
        header: everything about it but its bytes.
        values: where the bytes come from, None when `header` says that they lie elsewhere.
    """

    header: TensorProto
    values: Values | None

    @property
    def message(self) -> TensorProto:
        """The message to write, raw bytes excepted; a tensor of the source's own file comes complete."""
        if not isinstance(self.values, StoredValues) or self.values.is_external:
            return self.header
        source = self.values.tensor
        if source.name == self.header.name:
            return source
        renamed = TensorProto()
        renamed.CopyFrom(source)
        renamed.name = self.header.name
        return renamed

    @property
    def appended(self) -> Values | None:
        """What follows the message as raw bytes."""
        is_complete = isinstance(self.values, StoredValues) and not self.values.is_external
        return None if is_complete else self.values


def write_stream(stream: BinaryIO, proto: ModelProto, initializers: Sequence[Initializer]) -> None:
    """Write `proto` with `initializers` as those of its main graph."""
    sizes = [_size(initializer) for initializer in initializers]
    tag = _tag(GraphProto, "initializer")
    head, tail = _around(proto.graph, "initializer")
    body = sum(len(tag) + len(_varint(size)) + size for size in sizes)
    before, after = _around(proto, "graph")
    stream.write(before + _tag(ModelProto, "graph") + _varint(len(head) + body + len(tail)) + head)
    for initializer, size in zip(initializers, sizes, strict=True):
        stream.write(tag + _varint(size))
        _write(stream, initializer)
    stream.write(tail + after)


def _write(stream: BinaryIO, initializer: Initializer) -> None:
    stream.write(initializer.message.SerializeToString(deterministic=True))
    if initializer.appended is not None:
        data = stored_bytes(initializer.appended)
        stream.write(_tag(TensorProto, "raw_data") + _varint(data.size))
        stream.write(data.data)


def _size(initializer: Initializer) -> int:
    size = int(initializer.message.ByteSize())
    if initializer.appended is None:
        return size
    count = int(initializer.appended.nbytes)
    return size + len(_tag(TensorProto, "raw_data")) + len(_varint(count)) + count


def _around(message: Any, name: str) -> tuple[bytes, bytes]:
    """The serialized fields before and after field `name`, in field order."""
    numbers = {field.name: field.number for field in message.DESCRIPTOR.fields}
    before, after = type(message)(), type(message)()
    copy_fields(message, before, leave=[other for other in numbers if numbers[other] >= numbers[name]])
    copy_fields(message, after, leave=[other for other in numbers if numbers[other] <= numbers[name]])
    return before.SerializeToString(deterministic=True), after.SerializeToString(deterministic=True)


def _tag(message: type[Any], name: str) -> bytes:
    return _varint(message.DESCRIPTOR.fields_by_name[name].number << 3 | _LENGTH_DELIMITED)


def _varint(value: int) -> bytes:
    parts = bytearray()
    while value > 0x7F:
        parts.append(value & 0x7F | 0x80)
        value >>= 7
    parts.append(value)
    return bytes(parts)
