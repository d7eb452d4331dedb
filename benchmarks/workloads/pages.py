"""Pages of drawn text, as a scanner would deliver them, turned by quarters."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

from benchmarks.workloads.text_lines import FONT_FOLDER, FONTS, sentence

TURNS = 4


@dataclass(frozen=True)
class Page:
    """A page, uint8 [H, W, 3], and by how many quarters it is turned clockwise."""

    turns: int
    image: NDArray[np.uint8]


def draw_pages(count: int, seed: int) -> list[Page]:
    """Draw ``count`` pages, as many of each turn."""
    generator = np.random.default_rng(seed)
    pages = []
    for index in range(count):
        turns = index % TURNS
        pages.append(Page(turns, np.ascontiguousarray(np.rot90(_draw(generator), -turns))))
    return pages


def _draw(generator: np.random.Generator) -> NDArray[np.uint8]:
    """Lines of text in one font, with a little grain."""
    width, height = (int(size) for size in generator.integers(420, 760, 2))
    points = int(generator.integers(18, 36))
    font = ImageFont.truetype(FONT_FOLDER / str(generator.choice(FONTS)), points)
    paper, ink = generator.integers(200, 256, 3), generator.integers(0, 90, 3)
    image = Image.new("RGB", (width, height), tuple(int(value) for value in paper))
    pen = ImageDraw.Draw(image)
    left, step = int(generator.integers(10, 50)), int(points * generator.uniform(1.2, 1.8))
    for top in range(int(generator.integers(10, 40)), height - points, step):
        text = " ".join(sentence(generator) for _ in range(int(generator.integers(1, 4))))
        pen.text((left, top), text, tuple(int(value) for value in ink), font)
    grain = generator.normal(0, generator.uniform(0, 8), (height, width, 1))
    return np.clip(np.asarray(image) + grain, 0, 255).astype(np.uint8)
