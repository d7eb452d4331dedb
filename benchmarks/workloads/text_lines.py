"""Text lines drawn with known text, as a scanner or a screen would show them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

FONT_FOLDER = Path("/usr/share/fonts/truetype/dejavu")
FONTS = (
    "DejaVuSans.ttf",
    "DejaVuSans-Bold.ttf",
    "DejaVuSansMono.ttf",
    "DejaVuSansMono-Bold.ttf",
    "DejaVuSerif.ttf",
    "DejaVuSerif-Bold.ttf",
)
WORDS = (Path(__file__).parent / "words.txt").read_text().split()


@dataclass(frozen=True)
class TextLine:
    """A drawn line, uint8 [H, W, 3], and what it says."""

    text: str
    image: NDArray[np.uint8]


def sentence(generator: np.random.Generator) -> str:
    """Write one to five words, some capitalised, some lines with a number or a price.

    Never all capitals: there even a reader cannot tell O from 0 in every font.
    """
    words = [str(word) for word in generator.choice(WORDS, int(generator.integers(1, 6)))]
    if generator.random() < 0.3:
        words[0] = words[0].capitalize()
    if generator.random() < 0.4:
        number = int(generator.integers(10, 100000))
        words.append(f"{number / 100:.2f}" if generator.random() < 0.3 else str(number))
    return " ".join(words)


def draw(text: str, generator: np.random.Generator) -> NDArray[np.uint8]:
    """Draw ``text`` in a random font, size, ink and paper, with a little grain."""
    font = ImageFont.truetype(FONT_FOLDER / str(generator.choice(FONTS)), int(generator.integers(24, 41)))
    left, top, right, bottom = font.getbbox(text)
    margins = generator.integers(4, 11, 4)
    size = (int(right - left + margins[0] + margins[1]), int(bottom - top + margins[2] + margins[3]))
    dark, bright = generator.integers(0, 90, 3), generator.integers(190, 256, 3)
    paper, ink = (bright, dark) if generator.random() < 0.8 else (dark, bright)
    image = Image.new("RGB", size, tuple(int(value) for value in paper))
    origin = (int(margins[0] - left), int(margins[2] - top))
    ImageDraw.Draw(image).text(origin, text, tuple(int(value) for value in ink), font)
    grain = generator.normal(0, generator.uniform(0, 8), (size[1], size[0], 1))
    return np.clip(np.asarray(image) + grain, 0, 255).astype(np.uint8)


def draw_lines(count: int, seed: int, exclude: frozenset[str] = frozenset()) -> list[TextLine]:
    """Draw ``count`` lines of different text, none of it in ``exclude``."""
    generator = np.random.default_rng(seed)
    texts: dict[str, None] = {}
    while len(texts) < count:
        text = sentence(generator)
        if text not in exclude:
            texts[text] = None
    return [TextLine(text, draw(text, generator)) for text in texts]
