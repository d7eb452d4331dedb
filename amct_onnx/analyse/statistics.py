"""What calibration remembers of a tensor: exact extremes and counts, and its values or a histogram of them.

A tensor with few values is kept as it is. Beyond :data:`EXACT_LIMIT` values it becomes a histogram of a fixed number
of bins on [-2^k, 2^k); when larger values come, k grows and neighbouring bins merge, which gives the very counts that
binning afresh would give. So neither batch size nor order changes the counts, and memory does not grow with the data.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

EXACT_LIMIT = 2**16
BINS = 2**13
_BLOCK = 2**16
_SMALLEST_EXPONENT = -100


@dataclass(frozen=True)
class Distribution:
    """A weighted set of values that stands for a tensor.

    Attributes:
        values: float64 [n], ascending; the values themselves or the middles of occupied bins.
        counts: int64 [n].
        low: smallest value seen.
        high: largest value seen.
    """

    values: NDArray[np.float64]
    counts: NDArray[np.int64]
    low: float
    high: float

    @cached_property
    def weights(self) -> NDArray[np.float64]:
        """The counts as float64."""
        return self.counts.astype(np.float64)

    def weighted_sum(self, terms: NDArray[np.float64]) -> float:
        """Sum of ``counts * terms``; by einsum, since BLAS would wake all its threads for these short vectors."""
        return float(np.einsum("i,i->", self.weights, terms))

    @property
    def total(self) -> int:
        """Number of values seen."""
        return int(self.counts.sum())


@dataclass
class TensorStatistics:
    """Running statistics of one tensor.

    Attributes:
        low, high: extremes of the finite values, +inf and -inf before the first.
        count: number of finite values.
        nan, inf: number of values that are not finite.
    """

    keep_values: bool = True
    low: float = math.inf
    high: float = -math.inf
    count: int = 0
    nan: int = 0
    inf: int = 0
    _exact: list[NDArray[np.float32]] = field(default_factory=list)
    _exponent: int = _SMALLEST_EXPONENT
    _counts: NDArray[np.int64] | None = None

    def update(self, array: NDArray[Any]) -> None:
        """Take in the values of one run; empty arrays contribute nothing."""
        values = np.asarray(array, dtype=np.float32).reshape(-1)
        if not values.size:
            return
        low, high = float(values.min()), float(values.max())
        if not (math.isfinite(low) and math.isfinite(high)):
            values = self._finite(values)
            if not values.size:
                return
            low, high = float(values.min()), float(values.max())
        self.low, self.high = min(self.low, low), max(self.high, high)
        self.count += values.size
        if self.keep_values:
            self._keep(values)

    def merge(self, other: TensorStatistics) -> None:
        """Take in what another walk saw; the result is that of one walk over both."""
        self.keep_values = self.keep_values and other.keep_values
        self.low, self.high = min(self.low, other.low), max(self.high, other.high)
        self.count, self.nan, self.inf = self.count + other.count, self.nan + other.nan, self.inf + other.inf
        if other._counts is None:
            for values in other._exact:
                self._keep(values)
            return
        if self._counts is None:
            self._to_histogram()
        addend = TensorStatistics(low=self.low, high=self.high, _exponent=other._exponent, _counts=other._counts.copy())
        addend._grow(max(-self.low, self.high))
        self._grow(max(-self.low, self.high))
        self._counts = np.asarray(self._counts) + np.asarray(addend._counts)
        self._exponent = addend._exponent

    def summary(self) -> dict[str, Any]:
        """Everything but :meth:`stored`, as plain data."""
        extremes = {"low": self.low, "high": self.high} if self.count else {}
        is_binned = self._counts is not None
        counts = {"count": self.count, "nan": self.nan, "inf": self.inf}
        return {
            **extremes,
            **counts,
            "keeps_values": self.keep_values,
            "exponent": self._exponent if is_binned else None,
        }

    def stored(self) -> NDArray[Any]:
        """The histogram int64 [bins], or the values float32 [n]."""
        if self._counts is not None:
            return self._counts
        return np.concatenate(self._exact) if self._exact else np.zeros(0, np.float32)

    @classmethod
    def restored(cls, summary: Mapping[str, Any], stored: NDArray[Any]) -> TensorStatistics:
        """Inverse of :meth:`summary` and :meth:`stored`.

        Raises:
            ValueError: the array does not fit the summary.
        """
        exponent = summary["exponent"]
        is_binned = exponent is not None
        if stored.dtype != (np.int64 if is_binned else np.float32) or (is_binned and stored.shape != (BINS,)):
            raise ValueError("the array is no histogram and no list of values")
        return cls(
            keep_values=bool(summary["keeps_values"]),
            low=float(summary.get("low", math.inf)),
            high=float(summary.get("high", -math.inf)),
            count=int(summary["count"]),
            nan=int(summary["nan"]),
            inf=int(summary["inf"]),
            _exact=[] if is_binned or not stored.size else [stored],
            _exponent=int(exponent) if is_binned else _SMALLEST_EXPONENT,
            _counts=stored if is_binned else None,
        )

    def distribution(self) -> Distribution:
        """The values seen, as weighted points."""
        if self._counts is None:
            values = np.sort(np.concatenate(self._exact)) if self._exact else np.zeros(0, np.float32)
            unique, counts = np.unique(values, return_counts=True)
            return Distribution(unique.astype(np.float64), counts.astype(np.int64), self.low, self.high)
        occupied = np.flatnonzero(self._counts)
        width = math.ldexp(2.0, self._exponent) / BINS
        middles = (occupied - BINS // 2 + 0.5) * width
        return Distribution(np.clip(middles, self.low, self.high), self._counts[occupied], self.low, self.high)

    def _finite(self, values: NDArray[np.float32]) -> NDArray[np.float32]:
        finite = np.isfinite(values)
        nan = int(np.isnan(values).sum())
        self.nan += nan
        self.inf += int(values.size - finite.sum()) - nan
        return values[finite]

    def _keep(self, values: NDArray[np.float32]) -> None:
        if self._counts is None:
            if self.count <= EXACT_LIMIT:
                self._exact.append(values.copy())
                return
            self._to_histogram()
        self._grow(max(-self.low, self.high))
        self._count(values, np.asarray(self._counts))

    def _to_histogram(self) -> None:
        counts = self._counts = np.zeros(BINS, np.int64)
        self._grow(max(-self.low, self.high))
        for kept in self._exact:
            self._count(kept, counts)
        self._exact = []

    def _count(self, values: NDArray[np.float32], counts: NDArray[np.int64]) -> None:
        scale = np.float32(math.ldexp(BINS / 2, -self._exponent))
        for begin in range(0, values.size, _BLOCK):
            # Through int32, because casting float to the index type itself has no vector instruction on most machines.
            scaled = values[begin : begin + _BLOCK] * scale
            np.floor(scaled, out=scaled)
            scaled += BINS // 2
            counts += np.bincount(scaled.astype(np.int32).astype(np.intp), minlength=BINS)

    def _grow(self, magnitude: float) -> None:
        """Let the range cover `magnitude`; each doubling merges pairs of bins around zero."""
        # frexp gives m * 2^k with m < 1, so every value lies below the upper edge 2^k.
        needed = math.frexp(magnitude)[1] if magnitude > 0 else _SMALLEST_EXPONENT
        counts = np.asarray(self._counts)
        if not counts.any():
            self._exponent = max(needed, _SMALLEST_EXPONENT)
        while self._exponent < needed:
            pairs = counts.reshape(-1, 2).sum(axis=1)
            counts[:] = 0
            counts[BINS // 4 : 3 * BINS // 4] = pairs
            self._exponent += 1
