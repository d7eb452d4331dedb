"""A matrix product: rows are the vectors that meet the weight."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from amct_onnx.analyse.fitting.views.base import LayerView, chosen_rows
from amct_onnx.graph.weights import Array


@dataclass(frozen=True)
class GemmView(LayerView):
    """A Gemm with a constant second input."""

    @property
    def parts(self) -> int:
        """One."""
        return 1

    @property
    def columns(self) -> int:
        """Input channels."""
        return self.shape[1 if self._is_turned else 0]

    @property
    def factor(self) -> float:
        """Its alpha."""
        return float(self.node.attrs.get("alpha", 1.0))

    @property
    def _is_turned(self) -> bool:
        return bool(self.node.attrs.get("transB", 0))

    @property
    def channels(self) -> int:
        """Channels of the results."""
        return self.shape[0 if self._is_turned else 1]

    def axis(self, rank: int) -> int:
        """Channels are the last axis."""
        return rank - 1

    def input_axis(self, rank: int) -> int:
        """Channels are the last axis, of a turned input the first."""
        return 0 if self.node.attrs.get("transA", 0) else rank - 1

    def weight(self, values: Array) -> Array:
        """[1, results, columns]."""
        return (values if self._is_turned else values.T)[None]

    def stored(self, weight: Array) -> Array:
        """[columns, results], or the other way round."""
        return np.ascontiguousarray(weight[0] if self._is_turned else weight[0].T)

    def _rows(self, x: Array, y: Array, rng: np.random.Generator) -> tuple[Array, Array]:
        x = x.T if self.node.attrs.get("transA", 0) else x
        chosen = chosen_rows(len(x), rng)
        return x[chosen][:, None], y[chosen][:, None]


@dataclass(frozen=True)
class ProductView(LayerView):
    """A MatMul by a constant of two or more axes; parts are its matrices.

    Where the weight comes first all is turned: ``(W x)^T = x^T W^T``.
    """

    @property
    def parts(self) -> int:
        """Matrices of the weight."""
        return math.prod(self.shape[:-2])

    @property
    def columns(self) -> int:
        """Input channels."""
        return self.shape[-2 if self.index else -1]

    @property
    def copies(self) -> int:
        """All matrices give the same channels."""
        return self.parts

    @property
    def channels(self) -> int:
        """Channels of the results."""
        return self.shape[-1 if self.index else -2]

    def axis(self, rank: int) -> int:
        """Channels are the last axis, behind a weight the one before, which a vector does not have."""
        return rank - 1 if self.index or rank < len(self.shape) else rank - 2

    def input_axis(self, rank: int) -> int:
        """Channels are the last axis, behind a weight the one before; a vector has no other."""
        return rank - 1 if self.index or rank < 2 else rank - 2

    def weight(self, values: Array) -> Array:
        """[matrices, results, columns]."""
        turned = values.swapaxes(-1, -2) if self.index else values
        return turned.reshape(self.parts, *turned.shape[-2:])

    def stored(self, weight: Array) -> Array:
        """The matrices as they were."""
        turned = weight.swapaxes(-1, -2) if self.index else weight
        return np.ascontiguousarray(turned).reshape(self.shape)

    def _rows(self, x: Array, y: Array, rng: np.random.Generator) -> tuple[Array, Array]:
        matrices = self.shape[:-2]
        is_vector = x.ndim == 1
        if is_vector:
            x, y = x[None], y[..., None, :]
        elif not self.index:
            x, y = x.swapaxes(-1, -2), y.swapaxes(-1, -2)
        x = np.broadcast_to(x, (*y.shape[:-1], x.shape[-1]))
        # What the matrices have as one is a row like any other.
        first = y.ndim - 2 - len(matrices)
        own = [first + place for place, size in enumerate(matrices) if size > 1]
        behind = range(-1 - len(own), -1)
        rows, results = (np.moveaxis(one, own, behind).reshape(-1, self.parts, one.shape[-1]) for one in (x, y))
        chosen = chosen_rows(len(rows), rng)
        return rows[chosen], results[chosen]
