"""Where the channels of a weight lie, groups included."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from amct_onnx.graph.weights import Array


@dataclass(frozen=True)
class Channels:
    """The channels of one side of a layer in its weight tensor.

    Attributes:
        view: shape of the weight with a grouped axis split in two, so that every channel has a place of its own.
        axes: axes of `view` that count the channels, group first.
    """

    view: tuple[int, ...]
    axes: tuple[int, ...]

    @property
    def count(self) -> int:
        """Number of channels over all groups."""
        return math.prod(self.view[axis] for axis in self.axes)

    @property
    def axis(self) -> int | None:
        """The one axis of the weight that counts the channels; None where groups take two."""
        return self.axes[0] if len(self.axes) == 1 else None

    def rows(self, weight: Array) -> Array:
        """The weights of each channel, [count, others]."""
        first = np.moveaxis(weight.reshape(self.view), self.axes, range(len(self.axes)))
        return first.reshape(self.count, math.prod(self.view) // max(1, self.count))

    def spread(self, values: Array) -> Array:
        """One value, or one per channel, in the shape that multiplies a weight of shape `view`."""
        if values.size == 1:
            return values.reshape([1] * len(self.view))
        return values.reshape([size if axis in self.axes else 1 for axis, size in enumerate(self.view)])


def plain(axis: int, shape: tuple[int, ...]) -> Channels:
    """Channels that are one axis of the weight."""
    return Channels(shape, (axis,))


def grouped(axis: int, shape: tuple[int, ...], group: int) -> Channels:
    """Channels of which axis 0 holds the groups and `axis` those of one group."""
    if group == 1:
        return plain(axis, shape)
    split = (group, shape[0] // group, *shape[1:])
    return Channels(split, (0, axis + 1))
