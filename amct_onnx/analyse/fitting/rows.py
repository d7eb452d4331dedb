"""What a layer multiplies with its weights, row by row: the patches of a convolution, the vectors of a product."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from amct_onnx.graph.op_table import known_constant, resolve_constant
from amct_onnx.graph.parts import Node
from amct_onnx.graph.weights import Array
from amct_onnx.passes.pruning.labels import LabelArray

MOST_ROWS = 512
"""Rows taken of one feed; those of large images are many and alike."""


@dataclass(frozen=True)
class LayerView:
    """A layer as ``results = rows @ weight.T``, for one group of a convolution after the other.

    Attributes:
        node: a Conv, or a Gemm or MatMul with a constant second input.
    """

    node: Node

    @property
    def key(self) -> str:
        """Its name among others."""
        return str(self.node.name)

    @property
    def watched(self) -> tuple[str, str]:
        """The tensors of its rows and of its results."""
        return str(self.node.inputs[0].name), str(self.node.outputs[0].name)

    @property
    def columns(self) -> int:
        """Columns of one group."""
        shape = known_constant(self.node.inputs[1]).shape
        if self.is_convolution:
            return int(np.prod(shape[1:], dtype=np.int64))
        return int(shape[1 if self.node.op == "Gemm" and self.node.attrs.get("transB", 0) else 0])

    def labels(self, own: LabelArray) -> LabelArray:
        """Labels of the channels of each group: [groups, channels]."""
        return own.reshape(self.groups, -1)

    @property
    def is_convolution(self) -> bool:
        """Whether its rows are patches."""
        return bool(self.node.op == "Conv")

    @property
    def groups(self) -> int:
        """Groups of the convolution."""
        return int(self.node.attrs.get("group", 1))

    def weight(self, values: Array) -> Array:
        """Its weight as [groups, results, columns]; a column is a channel, or a place in the kernel of one."""
        if self.is_convolution:
            return values.reshape(self.groups, values.shape[0] // self.groups, -1)
        is_turned = self.node.op == "Gemm" and self.node.attrs.get("transB", 0)
        return (values if is_turned else values.T)[None]

    def stored(self, weight: Array, shape: tuple[int, ...]) -> Array:
        """Inverse of :meth:`weight`."""
        if self.is_convolution:
            return weight.reshape(shape)
        is_turned = self.node.op == "Gemm" and self.node.attrs.get("transB", 0)
        return np.ascontiguousarray(weight[0] if is_turned else weight[0].T)

    def rows(self, x: Array, y: Array, rng: np.random.Generator) -> tuple[Array, Array]:
        """Some rows and their results: [rows, groups, columns] and [rows, groups, results].

        Args:
            x: the input of one feed.
            y: the result of that feed, of the same or of another model.
            rng: chooses the rows.
        """
        return self._patches(x, y, rng) if self.is_convolution else self._vectors(x, y, rng)

    def _vectors(self, x: Array, y: Array, rng: np.random.Generator) -> tuple[Array, Array]:
        if self.node.op == "Gemm" and self.node.attrs.get("transA", 0):
            x = x.T
        first, second = x.reshape(-1, x.shape[-1]), y.reshape(-1, y.shape[-1])
        chosen = chosen_rows(len(first), rng)
        return first[chosen][:, None], second[chosen][:, None]

    def _patches(self, x: Array, y: Array, rng: np.random.Generator) -> tuple[Array, Array]:
        rank = x.ndim - 2
        kernel = self._kernel(rank)
        strides = self.node.attrs.get("strides") or [1] * rank
        dilations = self.node.attrs.get("dilations") or [1] * rank
        begins, ends = self._pads(x.shape[2:], y.shape[2:], kernel, strides, dilations)
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
        rows = np.moveaxis(patches, -1, 1).reshape(len(chosen), self.groups, -1)
        place = (sample, *places)
        results = np.moveaxis(y, 1, -1)[place].reshape(len(chosen), self.groups, -1)
        return rows, results

    def _kernel(self, rank: int) -> list[int]:
        weight = resolve_constant(self.node.inputs[1])
        if weight is None:
            raise TypeError(f"'{self.node.name}' has no constant weight")
        return [int(size) for size in weight.shape[2 : 2 + rank]]

    def _pads(
        self,
        sizes: tuple[int, ...],
        results: tuple[int, ...],
        kernel: list[int],
        strides: list[int],
        dilations: list[int],
    ) -> tuple[list[int], list[int]]:
        rank = len(sizes)
        mode = self.node.attrs.get("auto_pad", "NOTSET")
        pads = list(self.node.attrs.get("pads") or [0] * (2 * rank))
        if mode in ("SAME_UPPER", "SAME_LOWER"):
            spans = [dilation * (size - 1) + 1 for size, dilation in zip(kernel, dilations, strict=True)]
            totals = [
                max(0, (result - 1) * stride + span - size)
                for result, stride, span, size in zip(results, strides, spans, sizes, strict=True)
            ]
            less, more = [total // 2 for total in totals], [total - total // 2 for total in totals]
            return (less, more) if mode == "SAME_UPPER" else (more, less)
        return pads[:rank], pads[rank:]


def chosen_rows(count: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """Which rows are taken."""
    if count <= MOST_ROWS:
        return np.arange(count)
    return np.sort(rng.choice(count, MOST_ROWS, replace=False))


def has_view(node: Node) -> bool:
    """Whether a node is a layer that can be refitted; a depthwise convolution mixes no channels."""
    if node.op == "Conv":
        weight = resolve_constant(node.inputs[1])
        return weight is not None and not (int(weight.shape[1]) == 1 and int(node.attrs.get("group", 1)) > 1)
    if node.op == "Gemm":
        return resolve_constant(node.inputs[1]) is not None and _is_plain(node)
    weight = resolve_constant(node.inputs[1]) if node.op == "MatMul" else None
    return weight is not None and len(weight.shape) == 2


def _is_plain(gemm: Node) -> bool:
    """Whether a Gemm multiplies nothing by factors of its own, and adds the same to every row."""
    if gemm.attrs.get("alpha", 1.0) != 1.0 or gemm.attrs.get("beta", 1.0) != 1.0:
        return False
    added = resolve_constant(gemm.inputs[2]) if len(gemm.inputs) > 2 and not gemm.inputs[2].is_empty() else None
    return added is None or math.prod(added.shape[:-1]) == 1
