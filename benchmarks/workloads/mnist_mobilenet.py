"""The packaged demo model, scored on all of MNIST's test images and calibrated on its 200 packaged training images."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path

from benchmarks.fetch import mnist_archive
from benchmarks.workloads.base import Array, ExactWorkload, Feed, Outputs, batches
from models import demo
from models.makers.mnist import Split, read_split

BATCH = 20
LATENCY_BATCH = 16


class MnistMobilenet(ExactWorkload):
    """Digits, one answer per image."""

    name = "mnist_mobilenet"
    metric = "top-1"
    likeness = "top-1 agreement"
    channel_axis = 1

    @cached_property
    def _test(self) -> Split:
        test = read_split(mnist_archive(), "t10k")
        return test.sample(1000, seed=1) if self.quick else test

    @property
    def model_path(self) -> Path:
        """The packaged model."""
        return demo.load().model_path

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
