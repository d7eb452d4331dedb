"""A convolution: rows are the patches under its kernel."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from amct_onnx.analyse.fitting.views.base import LayerView, chosen_rows
from amct_onnx.graph.weights import Array


@dataclass(frozen=True)
class ConvolutionView(LayerView):
    """A Conv; parts are its groups."""

    @property
    def parts(self) -> int:
        """Groups of the convolution."""
        return int(self.node.attrs.get("group", 1))

    @property
    def columns(self) -> int:
        """Columns of one group."""
        return int(np.prod(self.shape[1:], dtype=np.int64))

    @property
    def places(self) -> int:
        """Places of the kernel."""
        return int(np.prod(self.shape[2:], dtype=np.int64))

    @property
    def channels(self) -> int:
        """Channels of the results."""
        return self.shape[0]

    def axis(self, rank: int) -> int:
        """Channels are axis 1."""
        return 1

    def weight(self, values: Array) -> Array:
        """[groups, results, columns]."""
        return values.reshape(self.parts, values.shape[0] // self.parts, -1)

    def stored(self, weight: Array) -> Array:
        """[results, channels of a group, kernel]."""
        return weight.reshape(self.shape)

    def _rows(self, x: Array, y: Array, rng: np.random.Generator) -> tuple[Array, Array]:
        rank = x.ndim - 2
        kernel = self.shape[2:]
        strides = self.node.attrs.get("strides") or [1] * rank
        dilations = self.node.attrs.get("dilations") or [1] * rank
        begins, ends = self._pads(x.shape[2:], y.shape[2:], strides, dilations)
        padded = np.pad(x, [(0, 0), (0, 0), *zip(begins, ends, strict=True)])
        chosen = chosen_rows(y.shape[0] * int(np.prod(y.shape[2:])), rng)
        sample, *places = np.unravel_index(chosen, (y.shape[0], *y.shape[2:]))
        index = []
        for axis in range(rank):
            shape = [1] * rank
            shape[axis] = kernel[axis]
            offsets = (np.arange(kernel[axis]) * dilations[axis]).reshape([1, *shape])
            index.append(places[axis].reshape([-1, *[1] * rank]) * strides[axis] + offsets)
        place: Any = (sample.reshape([-1, *[1] * rank]), *index)
        patches = np.moveaxis(padded, 1, -1)[place]
        rows = np.moveaxis(patches, -1, 1).reshape(len(chosen), self.parts, self.columns)
        place = (sample, *places)
        results = np.moveaxis(y, 1, -1)[place].reshape(len(chosen), self.parts, self.channels // self.parts)
        return rows, results

    def _pads(
        self, sizes: Sequence[int], results: Sequence[int], strides: Sequence[int], dilations: Sequence[int]
    ) -> tuple[list[int], list[int]]:
        rank = len(sizes)
        mode = self.node.attrs.get("auto_pad", "NOTSET")
        pads = list(self.node.attrs.get("pads") or [0] * (2 * rank))
        if mode in ("SAME_UPPER", "SAME_LOWER"):
            spans = [dilation * (size - 1) + 1 for size, dilation in zip(self.shape[2:], dilations, strict=True)]
            totals = [
                max(0, (result - 1) * stride + span - size)
                for result, stride, span, size in zip(results, strides, spans, sizes, strict=True)
            ]
            less, more = [total // 2 for total in totals], [total - total // 2 for total in totals]
            return (less, more) if mode == "SAME_UPPER" else (more, less)
        return pads[:rank], pads[rank:]
