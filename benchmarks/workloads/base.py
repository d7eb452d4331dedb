"""What a workload is: a trained model, data to calibrate on, other data to judge by, and the judgement."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from benchmarks.statistics import Figure, paired_difference, proportion

Array = NDArray[Any]
Feed = dict[str, Array]
Outputs = Sequence[Array]
Run = Callable[[Feed], Outputs]


class Workload(ABC):
    """A model with its data and its judgement.

    ``decode`` turns the outputs of one feed into one row per item; everything is judged on these rows, so that one walk
    over the evaluation feeds serves every figure.

    Attributes:
        name: Name of the workload and of its module.
        metric: What ``score`` measures against the truth.
        likeness: What ``agreement`` measures against the float model.
        channel_axis: Axis of what ``signal`` returns along which channels stand.
    """

    name: ClassVar[str]
    metric: ClassVar[str]
    likeness: ClassVar[str]
    channel_axis: ClassVar[int]

    def __init__(self, quick: bool = False) -> None:
        """Prepare the workload; ``quick`` judges on about a tenth of the items, to try things out."""
        self.quick = quick

    @property
    @abstractmethod
    def model_path(self) -> Path:
        """The float model."""

    @abstractmethod
    def calibration_feeds(self) -> list[Feed]:
        """Return what may be calibrated on; no source of it occurs in the evaluation."""

    def fitting_feeds(self) -> list[Feed]:
        """Return what layers may be fitted to: where calibration takes few, more of the same sources."""
        return self.calibration_feeds()

    def thinning_feeds(self) -> list[Feed]:
        """Return what layers may be fitted to when each loses half its weights, which asks for more still."""
        return self.fitting_feeds()

    @abstractmethod
    def evaluation_feeds(self) -> list[Feed]:
        """Return what is judged, in a fixed order."""

    @abstractmethod
    def latency_feed(self) -> Feed:
        """Return the one feed that is timed."""

    @abstractmethod
    def decode(self, outputs: Outputs, feed: Feed) -> Array:
        """Turn the outputs for one evaluation feed into rows, one per item."""

    def signal(self, outputs: Outputs, feed: Feed) -> Array:
        """Return the part of the outputs whose noise matters, for the SNR of each channel."""
        return outputs[0]

    @abstractmethod
    def score_rows(self, rows: Array) -> Figure:
        """Judge the rows of all evaluation feeds against the truth."""

    @abstractmethod
    def difference_rows(self, rows: Array, reference: Array) -> Figure:
        """Return the score of ``rows`` minus that of ``reference``, paired item by item."""

    @abstractmethod
    def agreement_rows(self, rows: Array, reference: Array) -> Figure:
        """Measure how alike ``rows`` are to those of the float model, truth aside."""

    def predict(self, run: Run) -> Array:
        """Run every evaluation feed and return all rows."""
        return np.concatenate([self.decode(run(feed), feed) for feed in self.evaluation_feeds()])

    def score(self, run: Run) -> Figure:
        """Judge one model against the truth."""
        return self.score_rows(self.predict(run))

    def agreement(self, run: Run, reference: Run) -> Figure:
        """Measure how alike two models answer."""
        return self.agreement_rows(self.predict(run), self.predict(reference))


class ExactWorkload(Workload):
    """A workload whose rows are right or wrong as a whole and independent of each other."""

    @abstractmethod
    def truth(self) -> Array:
        """Return the right answer for every row."""

    def score_rows(self, rows: Array) -> Figure:
        """Return the share of right answers."""
        return proportion(rows == self.truth())

    def difference_rows(self, rows: Array, reference: Array) -> Figure:
        """Return the paired difference of the shares of right answers."""
        truth = self.truth()
        return paired_difference(rows == truth, reference == truth)

    def agreement_rows(self, rows: Array, reference: Array) -> Figure:
        """Return the share of rows that equal the float model's."""
        return proportion(rows == reference)


def batches(arrays: Array, size: int) -> list[Array]:
    """Cut an array into pieces of at most ``size`` items."""
    return [arrays[start : start + size] for start in range(0, len(arrays), size)]
