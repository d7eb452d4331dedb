"""Message descriptors reduced to what reading text needs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from functools import cache

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.descriptor_pb2 import FieldDescriptorProto


class Kind(Enum):
    """How the text of a value is read; the value of the member says in words what is expected."""

    FLOAT = "a number"
    INT = "a whole number"
    BOOL = "true or false"
    STRING = "a quoted string"
    BYTES = "a quoted string of bytes"
    ENUM = "a name"
    MESSAGE = "a block in braces"


_KINDS = {
    FieldDescriptor.TYPE_FLOAT: Kind.FLOAT,
    FieldDescriptor.TYPE_DOUBLE: Kind.FLOAT,
    FieldDescriptor.TYPE_BOOL: Kind.BOOL,
    FieldDescriptor.TYPE_STRING: Kind.STRING,
    FieldDescriptor.TYPE_BYTES: Kind.BYTES,
    FieldDescriptor.TYPE_ENUM: Kind.ENUM,
    FieldDescriptor.TYPE_MESSAGE: Kind.MESSAGE,
}

_INT_BOUNDS = {
    FieldDescriptor.TYPE_INT32: (-(2**31), 2**31 - 1),
    FieldDescriptor.TYPE_INT64: (-(2**63), 2**63 - 1),
    FieldDescriptor.TYPE_UINT32: (0, 2**32 - 1),
    FieldDescriptor.TYPE_UINT64: (0, 2**64 - 1),
}


@dataclass(frozen=True)
class FieldSpec:
    """One field.

    ``bounds`` are the least and greatest whole number, ``names`` maps numbers to an enum's names, ``alternatives``
    are the other fields of its oneof.
    """

    name: str
    kind: Kind
    repeated: bool
    required: bool
    bounds: tuple[int, int]
    names: Mapping[int, str]
    message: MessageSpec | None
    alternatives: frozenset[str] = frozenset()


@dataclass(frozen=True)
class MessageSpec:
    """One message: its fields by name, in the order of their numbers."""

    name: str
    fields: Mapping[str, FieldSpec]


@cache
def message_spec(descriptor: Descriptor) -> MessageSpec:
    """Return the reduced form of a message that does not contain itself."""
    fields = sorted(descriptor.fields, key=lambda field: field.number)
    return MessageSpec(descriptor.name, {field.name: _field_spec(field) for field in fields})


def _field_spec(field: FieldDescriptor) -> FieldSpec:
    return FieldSpec(
        name=field.name,
        kind=_KINDS.get(field.type, Kind.INT),
        repeated=_has_label(field, "is_repeated", FieldDescriptorProto.LABEL_REPEATED),
        required=_has_label(field, "is_required", FieldDescriptorProto.LABEL_REQUIRED),
        bounds=_INT_BOUNDS.get(field.type, (0, 0)),
        names={value.number: value.name for value in field.enum_type.values} if field.enum_type else {},
        message=message_spec(field.message_type) if field.message_type else None,
        alternatives=_alternatives(field),
    )


def _alternatives(field: FieldDescriptor) -> frozenset[str]:
    oneof = field.containing_oneof
    return frozenset(other.name for other in oneof.fields) - {field.name} if oneof else frozenset()


def _has_label(field: FieldDescriptor, attribute: str, label: int) -> bool:
    # Older releases of protobuf know the label only, newer ones the attributes only.
    return bool(getattr(field, attribute) if hasattr(field, attribute) else getattr(field, "label", None) == label)
