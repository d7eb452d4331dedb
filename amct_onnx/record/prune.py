"""What a record says of pruning: cascades of channels, and 2:4 masks."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from enum import Enum

import numpy as np
from numpy.typing import NDArray

from amct_onnx.record.layers import float32, float32s

AttrValue = float | int | str | tuple[float, ...] | tuple[int, ...] | tuple[str, ...]


class AttrType(Enum):
    """Type of a prune node's attribute; the value is the field of the schema that holds it."""

    FLOAT = "f"
    INT = "i"
    STRING = "s"
    FLOATS = "floats"
    INTS = "ints"
    STRINGS = "strings"


@dataclass(frozen=True)
class PruneAttr:
    """One attribute of a prune node: ``value`` is a float, int or str, or for the plural types a tuple of them."""

    name: str
    type: AttrType
    value: AttrValue

    def __post_init__(self) -> None:
        if self.type is AttrType.FLOAT and isinstance(self.value, float | int):
            object.__setattr__(self, "value", float32(self.value))
        elif self.type is AttrType.FLOATS and isinstance(self.value, tuple):
            object.__setattr__(self, "value", float32s(np.asarray(self.value, dtype=np.float64)))

    @classmethod
    def of(cls, name: str, value: AttrValue) -> PruneAttr:
        """Return an attribute whose type follows from its value; an empty tuple counts as one of whole numbers."""
        sample = (value[0] if value else 0) if isinstance(value, tuple) else value
        kind = "STRING" if isinstance(sample, str) else "INT" if isinstance(sample, int) else "FLOAT"
        return cls(name, AttrType[kind + "S" * isinstance(value, tuple)], value)


@dataclass(frozen=True)
class PruneNode:
    """A node with what pruning does to it: ranges and indices count channels along the axis that is pruned."""

    name: str
    attrs: tuple[PruneAttr, ...] = ()

    def attr(self, name: str) -> AttrValue | None:
        """Return the value of an attribute, or None if the node has none of that name."""
        return next((attr.value for attr in self.attrs if attr.name == name), None)

    def with_attr(self, name: str, value: AttrValue) -> PruneNode:
        """Return the node with an attribute set: in its old place if it was there, else at the end."""
        new = PruneAttr.of(name, value)
        if self.attr(name) is None:
            return replace(self, attrs=(*self.attrs, new))
        return replace(self, attrs=tuple(new if attr.name == name else attr for attr in self.attrs))

    @property
    def op_type(self) -> str | None:
        """Operator type (attribute ``type``)."""
        value = self.attr("type")
        return value if isinstance(value, str) else None

    @property
    def begin(self) -> int | None:
        """First channel of the range that the record covers."""
        return self._int("begin")

    @property
    def end(self) -> int | None:
        """One past the last channel of that range."""
        return self._int("end")

    @property
    def group(self) -> int | None:
        """Groups of a grouped convolution."""
        return self._int("group")

    @property
    def prune_group(self) -> int | None:
        """Number of equal parts of the range from which channels must go evenly."""
        return self._int("prune_group")

    @property
    def prune_index(self) -> tuple[int, ...] | None:
        """Channels that go, counted from the axis's own start, not from ``begin``."""
        return self._ints("prune_index")

    @property
    def mask_shape(self) -> tuple[int, ...] | None:
        """Shape of the 2:4 mask: that of the weight."""
        return self._ints("mask_shape")

    @property
    def selective_mask(self) -> tuple[int, ...] | None:
        """The 2:4 mask in words, see :func:`unpack_mask`."""
        return self._ints("selective_mask")

    def _int(self, name: str) -> int | None:
        value = self.attr(name)
        return value if isinstance(value, int) else None

    def _ints(self, name: str) -> tuple[int, ...] | None:
        value = self.attr(name)
        if not isinstance(value, tuple):
            return None
        numbers = tuple(item for item in value if isinstance(item, int))
        return numbers if len(numbers) == len(value) else None


@dataclass(frozen=True)
class PruneRecord:
    """One cascade (``producers`` lose channels, ``consumers`` follow), or one layer with a 2:4 mask."""

    producers: tuple[PruneNode, ...] = ()
    consumers: tuple[PruneNode, ...] = ()
    selective_prune: PruneNode | None = None

    def nodes(self) -> tuple[tuple[str, int, PruneNode], ...]:
        """Return every node with its role (a field name of the schema) and its position in that role."""
        producers = tuple(("producer", index, node) for index, node in enumerate(self.producers))
        consumers = tuple(("consumer", index, node) for index, node in enumerate(self.consumers))
        selective = () if self.selective_prune is None else (("selective_prune", 0, self.selective_prune),)
        return producers + consumers + selective


def mask_words(shape: tuple[int, ...]) -> int:
    """Return how many 64-bit words the mask of a weight of this shape takes."""
    return -(-math.prod(shape) // 64)


def pack_mask(mask: NDArray[np.bool_]) -> tuple[int, ...]:
    """Return a mask (True: the weight stays) as words: bits in row-major order, the first is the highest of its byte,
    bytes padded with zeros to whole little-endian int64 words."""
    packed = np.packbits(mask.reshape(-1))
    padded = np.zeros(mask_words(mask.shape) * 8, dtype=np.uint8)
    padded[: packed.size] = packed
    return tuple(padded.view("<i8").tolist())


def unpack_mask(words: tuple[int, ...], shape: tuple[int, ...]) -> NDArray[np.bool_]:
    """Return the mask that :func:`pack_mask` made words of; raises ``ValueError`` if their number does not fit."""
    if len(words) != mask_words(shape):
        raise ValueError(f"a mask of shape {shape} takes {mask_words(shape)} words, not {len(words)}")
    data = np.asarray(words, dtype="<i8").view(np.uint8)
    return np.unpackbits(data, count=math.prod(shape)).astype(np.bool_).reshape(shape)
