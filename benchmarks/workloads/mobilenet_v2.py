"""MobileNetV2 with ImageNet weights; calibration and evaluation never share a picture.

Calibrated on crops of scikit-image's photos and of foolbox's ImageNet pictures 0 to 9; judged on pictures 10 to 19: the
labels of their ten centre crops (too few for a claim), and agreement with the float model on 200 random crops of them.
"""

from __future__ import annotations

from functools import cached_property
from pathlib import Path

import numpy as np
from PIL import Image

from benchmarks.fetch import IMAGENET_SAMPLES, PHOTOS, exported, fetch
from benchmarks.statistics import Figure, clustered_proportion, paired_difference, proportion
from benchmarks.workloads.base import Array, Feed, Outputs, Workload, batches
from benchmarks.workloads.photos import centre, random_crop

INPUT = "image"
CALIBRATION_SEED, EVALUATION_SEED = 1, 2
CROPS_PER_PHOTO = 5
FITTING_CROPS_PER_PHOTO = 15
CROPS_PER_PICTURE = 20
BATCH = 10
FIRST_JUDGED = 10


class MobilenetV2(Workload):
    """Pictures; the first rows are centre crops with labels, the rest random crops without."""

    name = "mobilenet_v2"
    metric = "top-1 of labelled pictures"
    likeness = "top-1 agreement on crops"
    channel_axis = 1

    @property
    def model_path(self) -> Path:
        """The export made by ``models/makers/mobilenet_v2.py``."""
        return exported(self.name)

    @cached_property
    def _pictures(self) -> list[Path]:
        return sorted((fetch(IMAGENET_SAMPLES) / "foolbox/data").glob("imagenet_*.jpg"))

    @cached_property
    def _judged(self) -> list[Path]:
        return self._pictures[FIRST_JUDGED:]

    @property
    def _crops_per_picture(self) -> int:
        return 2 if self.quick else CROPS_PER_PICTURE

    def calibration_feeds(self) -> list[Feed]:
        """Return crops of photos and of pictures that are not judged."""
        return self._other_crops(CROPS_PER_PHOTO)

    def fitting_feeds(self) -> list[Feed]:
        """Return more crops of the same photos and pictures: layers of 1280 columns are fitted to them."""
        return self._other_crops(FITTING_CROPS_PER_PHOTO)

    def _other_crops(self, count: int) -> list[Feed]:
        folder = fetch(PHOTOS)
        sources = [folder / name for name in PHOTOS.files] + self._pictures[:FIRST_JUDGED]
        return [{INPUT: batch} for batch in batches(_crops(sources, count, CALIBRATION_SEED), BATCH)]

    def evaluation_feeds(self) -> list[Feed]:
        """Return the labelled centre crops, then the random crops picture by picture."""
        centres = np.stack([centre(_open(path)) for path in self._judged])
        crops = _crops(self._judged, self._crops_per_picture, EVALUATION_SEED)
        return [{INPUT: batch} for batch in batches(np.concatenate([centres, crops]), BATCH)]

    def latency_feed(self) -> Feed:
        """Return one centre crop."""
        return {INPUT: centre(_open(self._judged[0]))[None]}

    def decode(self, outputs: Outputs, feed: Feed) -> Array:
        """Return the likeliest class of each crop."""
        return outputs[0].argmax(axis=1)

    def score_rows(self, rows: Array) -> Figure:
        """Return the share of labelled pictures that are recognised."""
        return proportion(self._hits(rows))

    def difference_rows(self, rows: Array, reference: Array) -> Figure:
        """Return the paired difference on the labelled pictures."""
        return paired_difference(self._hits(rows), self._hits(reference))

    def agreement_rows(self, rows: Array, reference: Array) -> Figure:
        """Return the share of random crops on which both models name the same class."""
        labelled = len(self._judged)
        pictures = np.repeat(np.arange(labelled), self._crops_per_picture)
        return clustered_proportion(rows[labelled:] == reference[labelled:], pictures)

    def _hits(self, rows: Array) -> Array:
        # The class is the last number of the file name: imagenet_10_541.jpg.
        labels = np.array([int(path.stem.rsplit("_", 1)[1]) for path in self._judged])
        return rows[: len(labels)] == labels


def _open(path: Path) -> Image.Image:
    """Read a picture as RGB."""
    with Image.open(path) as picture:
        return picture.convert("RGB")


def _crops(sources: list[Path], count: int, seed: int) -> Array:
    """Cut ``count`` random crops out of each source, in order."""
    generator = np.random.default_rng(seed)
    return np.stack([random_crop(photo, generator) for photo in map(_open, sources) for _ in range(count)])
