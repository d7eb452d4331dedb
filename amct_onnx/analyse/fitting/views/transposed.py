"""A transposed convolution: rows are what meets at one place of the results.

Results at places that are alike modulo the strides, a *phase*, meet the same places of the kernel: place p of the
results meets place t of the kernel at input ``(p + pad - t * dilation) / stride``, where that is a whole number. So
each phase is a convolution of its own (the sub-pixel view of Shi et al. 2016), and all have one bias in common.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from amct_onnx.analyse.fitting.views.base import LayerView, chosen_rows
from amct_onnx.graph.weights import Array

Places = NDArray[np.int64]


@dataclass(frozen=True)
class TransposedView(LayerView):
    """A ConvTranspose; parts are the phases of one group after the other.

    Where phases meet fewer places of the kernel than others, columns of zeros fill up.
    """

    @property
    def parts(self) -> int:
        """Groups times phases."""
        return self._groups * self.copies

    @property
    def copies(self) -> int:
        """Phases."""
        return math.prod(self._strides)

    @property
    def columns(self) -> int:
        """Columns of one part."""
        return self.shape[0] // self._groups * self.places

    @property
    def places(self) -> int:
        """Places of the kernel that one phase meets at most."""
        return math.prod(taps.shape[1] for taps in self._taps)

    @property
    def channels(self) -> int:
        """Channels of the results."""
        return self.shape[1] * self._groups

    def axis(self, rank: int) -> int:
        """Channels are axis 1."""
        return 1

    def weight(self, values: Array) -> Array:
        """[groups x phases, results, columns]."""
        rank = len(self._taps)
        filled = np.pad(values, [(0, 0), (0, 0), *[(0, 1)] * rank])
        for axis, taps in enumerate(self._taps):
            filled = filled.take(taps.reshape(-1), axis=2 + axis)
        own = filled.reshape(self._groups, -1, values.shape[1], *self._by_phase)
        phases = [3 + 2 * axis for axis in range(rank)]
        turned = own.transpose(0, *phases, 2, 1, *[axis + 1 for axis in phases])
        return np.asarray(turned.reshape(self.parts, values.shape[1], -1))

    def stored(self, weight: Array) -> Array:
        """[channels, results of a group, kernel]."""
        rank, results = len(self._taps), weight.shape[1]
        phases, taps = self._by_phase[::2], self._by_phase[1::2]
        own = weight.reshape(self._groups, *phases, results, -1, *taps)
        pairs = [place for axis in range(rank) for place in (1 + axis, 3 + rank + axis)]
        turned = own.transpose(0, 2 + rank, 1 + rank, *pairs)
        flat = turned.reshape(self.shape[0], results, *[taps.size for taps in self._taps])
        for axis, own in enumerate(self._taps):
            # Every place of the kernel belongs to one phase; what filled up comes last.
            order = np.argsort(own.reshape(-1), kind="stable")[: self.shape[2 + axis]]
            flat = flat.take(order, axis=2 + axis)
        return np.ascontiguousarray(flat)

    def _rows(self, x: Array, y: Array, rng: np.random.Generator) -> tuple[Array, Array]:
        rank = x.ndim - 2
        begins = self._begins(x.shape[2:], y.shape[2:])
        targets = [
            _places_of_phases(size, stride, begin)
            for size, stride, begin in zip(y.shape[2:], self._strides, begins, strict=True)
        ]
        counts = [len(places) for places in targets]
        chosen = chosen_rows(y.shape[0] * math.prod(counts), rng)
        sample, *rows = np.unravel_index(chosen, (y.shape[0], *counts))
        at = [places[own] for places, own in zip(targets, rows, strict=True)]
        sources = [self._sources(axis, own, begins[axis], x.shape[2 + axis]) for axis, own in enumerate(at)]
        # Beyond the last place of the input stands a zero.
        padded = np.pad(x, [(0, 0), (0, 0), *[(0, 1)] * rank])
        read, given = self.shape[0] // self._groups, self.shape[1]
        patches = _gathered(padded, sample, sources).reshape(len(chosen), self._groups, read, *self._by_phase)
        phases = [3 + 2 * axis for axis in range(rank)]
        patches = patches.transpose(0, 1, *phases, 2, *[axis + 1 for axis in phases])
        results = _gathered(y, sample, at).reshape(len(chosen), self._groups, given, self.copies)
        made = results.swapaxes(2, 3).reshape(len(chosen), self.parts, given)
        return patches.reshape(len(chosen), self.parts, self.columns), made

    def _sources(self, axis: int, places: Places, begin: int, size: int) -> Places:
        """Where the input meets the kernel for some places of the results: [rows, phases x taps]."""
        taps = self._taps[axis]
        offsets = (places + begin)[:, :, None] - taps * self._dilations[axis]
        source = offsets // self._strides[axis]
        is_there = (taps < self.shape[2 + axis]) & (source >= 0) & (source < size)
        return np.where(is_there, source, size).reshape(len(places), taps.size)

    def _begins(self, sizes: Sequence[int], results: Sequence[int]) -> list[int]:
        """Places of the results that are cut off before the first."""
        rank = len(sizes)
        mode = self.node.attrs.get("auto_pad", "NOTSET")
        asked = self.node.attrs.get("output_shape")
        if mode in ("NOTSET", "VALID") and not asked:
            pads = self.node.attrs.get("pads") if mode == "NOTSET" else None
            return list(pads or [0] * rank)[:rank]
        more = self.node.attrs.get("output_padding") or [0] * rank
        totals = [
            max(0, stride * (size - 1) + extra + dilation * (kernel - 1) + 1 - result)
            for stride, size, extra, dilation, kernel, result in zip(
                self._strides, sizes, more, self._dilations, self.shape[2:], results, strict=True
            )
        ]
        return [total // 2 if mode == "SAME_UPPER" else total - total // 2 for total in totals]

    @property
    def _groups(self) -> int:
        return int(self.node.attrs.get("group", 1))

    @property
    def _strides(self) -> list[int]:
        return list(self.node.attrs.get("strides") or [1] * (len(self.shape) - 2))

    @property
    def _dilations(self) -> list[int]:
        return list(self.node.attrs.get("dilations") or [1] * (len(self.shape) - 2))

    @property
    def _taps(self) -> list[Places]:
        """For each axis the places of the kernel that each phase meets: [phases, most]; the kernel's size fills up."""
        return taps_of_phases(self.shape[2:], self._strides, self._dilations)

    @property
    def _by_phase(self) -> list[int]:
        """Phases and places of each axis in turn."""
        return [size for taps in self._taps for size in taps.shape]


def taps_of_phases(kernel: Sequence[int], strides: Sequence[int], dilations: Sequence[int]) -> list[Places]:
    """For each axis the places of a kernel that each phase meets: [phases, most]; the kernel's size fills up."""
    found: list[Places] = []
    for size, stride, dilation in zip(kernel, strides, dilations, strict=True):
        phases = np.arange(size) * dilation % stride
        own = [np.flatnonzero(phases == phase) for phase in range(stride)]
        most = max(len(places) for places in own)
        found.append(np.stack([np.pad(places, (0, most - len(places)), constant_values=size) for places in own]))
    return found


def _places_of_phases(size: int, stride: int, begin: int) -> Places:
    """Places of results along an axis, by phase: [rows, phases]; a phase with one place fewer has its last twice."""
    first = (np.arange(stride) - begin) % stride
    counts = -(-(size - first) // stride)
    if counts.min() < 1:
        return np.zeros((0, stride), np.int64)
    rows = np.arange(counts.max())[:, None]
    return np.asarray(first + stride * np.minimum(rows, counts - 1))


def _gathered(array: Array, sample: Places, places: Sequence[Places]) -> Array:
    """Values [rows, channels, places of the first axis, of the second, ...] at the places of each row."""
    rank = len(places)
    index: list[Any] = [sample.reshape(-1, *[1] * rank)]
    for axis, own in enumerate(places):
        shape = [len(own), *[1] * rank]
        shape[1 + axis] = own.shape[1]
        index.append(own.reshape(shape))
    return np.moveaxis(np.moveaxis(array, 1, -1)[tuple(index)], -1, 1)
