"""Signal-to-noise ratio of each output channel against the float model, gathered feed by feed."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np

from benchmarks.workloads.base import Array

# A channel that is all but silent over the whole data (a character no line contains) tells nothing about the model.
LEAST_SHARE_OF_LOUDEST = 1e-3
# Stands for "no noise at all" and, negative, for "not a number"; JSON knows no infinity.
MOST_DECIBEL = 200.0


@dataclass
class ChannelNoise:
    """Energies of signal and noise per channel."""

    channel_axis: int
    _signal: Array = field(default_factory=lambda: np.zeros(1))
    _noise: Array = field(default_factory=lambda: np.zeros(1))

    def add(self, reference: Array, output: Array) -> None:
        """Take in the outputs of both models for one feed."""
        signal = np.moveaxis(reference.astype(np.float64), self.channel_axis, 0)
        other = np.moveaxis(output.astype(np.float64), self.channel_axis, 0)
        rows = len(signal)
        # Plain addition broadcasts away the initial single zero.
        self._signal = self._signal + np.square(signal).reshape(rows, -1).sum(axis=1)
        self._noise = self._noise + np.square(other - signal).reshape(rows, -1).sum(axis=1)

    def worst(self) -> float:
        """Return the SNR in dB of the worst channel that carries a thousandth of the loudest one's energy."""
        heard = self._signal >= LEAST_SHARE_OF_LOUDEST * self._signal.max()
        return min(map(_decibel, self._signal[heard], self._noise[heard]))

    def whole(self) -> float:
        """Return the SNR in dB of the whole output."""
        return _decibel(self._signal.sum(), self._noise.sum())


def _decibel(signal: float, noise: float) -> float:
    """Return the ratio of two energies in dB, within ``MOST_DECIBEL`` either way."""
    if not math.isfinite(noise):
        return -MOST_DECIBEL
    if noise == 0:
        return MOST_DECIBEL
    return 10 * math.log10(signal / noise)
