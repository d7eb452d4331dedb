"""Digit classifiers, scored on all of MNIST's test images and calibrated on the demo's 200 training images."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path

from benchmarks.fetch import exported, mnist_archive
from benchmarks.workloads.base import Array, ExactWorkload, Feed, Outputs, batches
from models import demo
from models.makers.mnist import Split, read_split

BATCH = 20
LATENCY_BATCH = 16


class _Digits(ExactWorkload):
    """Digits, one answer per image."""

    metric = "top-1"
    likeness = "top-1 agreement"
    channel_axis = 1

    @cached_property
    def _test(self) -> Split:
        test = read_split(mnist_archive(), "t10k")
        return test.sample(1000, seed=1) if self.quick else test

    def calibration_feeds(self) -> list[Feed]:
        """Return the packaged training images."""
        return [{demo.INPUT_NAME: batch} for batch in batches(demo.load().calibration_images, BATCH)]

    def evaluation_feeds(self) -> list[Feed]:
        """Return the test images."""
        return [{demo.INPUT_NAME: demo.preprocess(batch)} for batch in batches(self._test.images, 10 * BATCH)]

    def latency_feed(self) -> Feed:
        """Return a small batch, for one image is over before a kernel matters."""
        return {demo.INPUT_NAME: demo.preprocess(self._test.images[:LATENCY_BATCH])}

    def decode(self, outputs: Outputs, feed: Feed) -> Array:
        """Return the likeliest digit of each image."""
        return outputs[0].argmax(axis=1)

    def truth(self) -> Array:
        """Return the labels."""
        return self._test.labels


class MnistMobilenet(_Digits):
    """The packaged demo model."""

    name = "mnist_mobilenet"

    @property
    def model_path(self) -> Path:
        """The packaged model."""
        return demo.load().model_path


class MnistResnet(_Digits):
    """A residual network."""

    name = "mnist_resnet"

    @property
    def model_path(self) -> Path:
        """The export made by ``models/makers/mnist_resnet.py``."""
        return exported(self.name)
