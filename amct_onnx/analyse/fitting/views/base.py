"""What every layer that can be fitted has in common."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from amct_onnx.analyse.fitting.biases import beta, own_addend
from amct_onnx.graph import constant_array
from amct_onnx.graph.op_table import known_constant, resolve_constant
from amct_onnx.graph.parts import Node
from amct_onnx.graph.weights import Array

MOST_ROWS = 512
"""Rows taken of one feed; those of large images are many and alike."""


@dataclass(frozen=True)
class LayerView(ABC):
    """A layer as ``results = rows @ weight.T`` plus a bias, for one part of it after the other.

    Parts are the groups of a convolution, the matrices of a batched product. A column is an input channel, or one place
    of its kernel; those of one channel follow each other.

    Attributes:
        node: the layer.
        index: which of its inputs is the weight.
    """

    node: Node
    index: int = 1

    @property
    def key(self) -> str:
        """Its name among others."""
        return str(self.node.name)

    @property
    def shape(self) -> tuple[int, ...]:
        """Of the weight, as the model stores it."""
        return tuple(int(size) for size in known_constant(self.node.inputs[self.index]).shape)

    @property
    def reads(self) -> tuple[str, ...]:
        """The tensors that its rows come from, and what is added to its results, where that is computed."""
        data, added = self.node.inputs[1 - self.index], own_addend(self.node)
        is_computed = added is not None and resolve_constant(added) is None
        return tuple(str(tensor.name) for tensor in (data, added if is_computed else None) if tensor is not None)

    @property
    def gives(self) -> str:
        """The tensor of its results."""
        return str(self.node.outputs[0].name)

    @property
    @abstractmethod
    def parts(self) -> int:
        """How many parts it has."""

    @property
    def copies(self) -> int:
        """How many parts, one after the other, give the same channels and have one bias in common."""
        return 1

    @property
    @abstractmethod
    def columns(self) -> int:
        """Columns of one part."""

    @property
    def places(self) -> int:
        """Columns of one input channel."""
        return 1

    @property
    def factor(self) -> float:
        """What products are multiplied with; rows hold it."""
        return 1.0

    @property
    @abstractmethod
    def channels(self) -> int:
        """Channels of the results."""

    @abstractmethod
    def axis(self, rank: int) -> int:
        """Where the channels stand in results of so many axes."""

    def input_axis(self, rank: int) -> int:
        """Where the channels stand in an input of so many axes."""
        return self.axis(rank)

    def of_inputs(self, own: NDArray[Any]) -> NDArray[Any]:
        """What is given for each input channel, by part: [parts, channels]."""
        return np.repeat(own.reshape(self.parts // self.copies, -1), self.copies, axis=0)

    def of_results(self, own: NDArray[Any]) -> NDArray[Any]:
        """What is given for each channel of the results, by part: [parts, results]."""
        return np.repeat(own.reshape(self.parts // self.copies, -1), self.copies, axis=0)

    @abstractmethod
    def weight(self, values: Array) -> Array:
        """The weight, or anything of its shape, as [parts, results, columns]."""

    @abstractmethod
    def stored(self, weight: Array) -> Array:
        """Inverse of :meth:`weight`."""

    def rows(
        self, inputs: Mapping[str, Array], results: Mapping[str, Array], rng: np.random.Generator
    ) -> tuple[Array, Array]:
        """Some rows and their results, without what :func:`own_addend` adds: [rows, parts, columns or results].

        Args:
            inputs: what :attr:`reads` names, of one feed.
            results: what :attr:`gives` names, of that feed, of the same or of another model.
            rng: chooses the rows.
        """
        given = self._less_addend(results[self.gives], inputs)
        rows, wanted = self._rows(inputs[self.reads[0]], given, rng)
        return (rows if self.factor == 1.0 else rows * np.asarray(self.factor, rows.dtype)), wanted

    @abstractmethod
    def _rows(self, x: Array, y: Array, rng: np.random.Generator) -> tuple[Array, Array]:
        """Some rows, not multiplied with :attr:`factor`, and their results."""

    def _less_addend(self, y: Array, inputs: Mapping[str, Array]) -> Array:
        added = own_addend(self.node)
        if added is None:
            return y
        constant = resolve_constant(added)
        values = inputs[str(added.name)] if constant is None else constant_array(constant)
        # Of a convolution it is one value for each channel.
        shape = values.shape if self.node.op == "Gemm" else (-1, *[1] * (y.ndim - 2))
        wide = np.result_type(y.dtype, np.float32)
        with np.errstate(invalid="ignore", over="ignore"):
            return np.asarray(y.astype(wide) - wide.type(beta(self.node)) * values.reshape(shape).astype(wide))


def chosen_rows(count: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """Which rows are taken."""
    if count <= MOST_ROWS:
        return np.arange(count)
    return np.sort(rng.choice(count, MOST_ROWS, replace=False))
