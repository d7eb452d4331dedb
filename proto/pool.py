"""Message classes made at import from the checked-in descriptor set.

The descriptors live in a pool of our own. Generated ``_pb2`` modules would register in protobuf's default pool, where
two packages with a like-named file or message (AMCT's own, in one process) clash, and would tie us to the runtime of
their generator.
"""

from __future__ import annotations

from pathlib import Path

from google.protobuf.descriptor_pb2 import FileDescriptorSet
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

DESCRIPTOR_SET = Path(__file__).with_name("schemas.binpb")


def read_descriptor_set() -> FileDescriptorSet:
    """Return the checked-in descriptors of every schema in this folder."""
    return FileDescriptorSet.FromString(DESCRIPTOR_SET.read_bytes())


def _private_pool() -> DescriptorPool:
    pool = DescriptorPool()
    for file in read_descriptor_set().file:
        pool.AddSerializedFile(file.SerializeToString())
    return pool


_POOL = _private_pool()


def message_classes(module: str) -> dict[str, type[Message]]:
    """Return the top-level message classes, by name, of the ``.proto`` file called as the last part of ``module``.

    Raises ``KeyError`` if the descriptor set holds no such file.
    """
    file = _POOL.FindFileByName(f"{module.rpartition('.')[2]}.proto")
    return {name: GetMessageClass(message) for name, message in file.message_types_by_name.items()}
