"""Captchas drawn by the package of that name, the same ones every time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any
from unittest import mock

import numpy as np
from numpy.typing import NDArray

# Without 0, 1, I and O, which no reader can tell from each other.
LETTERS = "23456789ABCDEFGHJKLMNPQRSTUVWXYZ"
LENGTH = 4


@dataclass(frozen=True)
class Captcha:
    """A drawn captcha, uint8 [60, 160, 3], and what it says."""

    text: str
    image: NDArray[np.uint8]


class _Seeded(ModuleType):
    """What the package asks of ``secrets``, from a seed."""

    def __init__(self, generator: np.random.Generator) -> None:
        super().__init__("secrets")
        self._generator = generator

    def randbelow(self, bound: int) -> int:
        """A number from 0 to ``bound - 1``."""
        return int(self._generator.integers(bound))

    def randbits(self, count: int) -> int:
        """A number of so many bits."""
        return int(self._generator.integers(1 << count))

    def choice(self, values: Sequence[Any]) -> Any:
        """One of the values."""
        return values[self.randbelow(len(values))]


def draw_captchas(count: int, seed: int) -> list[Captcha]:
    """Draw ``count`` captchas of random letters and digits."""
    from captcha import image as drawing

    generator = np.random.default_rng(seed)
    painter = drawing.ImageCaptcha(160, 60)
    with mock.patch.object(drawing, "secrets", _Seeded(generator)):
        texts = ["".join(generator.choice(list(LETTERS), LENGTH)) for _ in range(count)]
        return [Captcha(text, np.asarray(painter.generate_image(text).convert("RGB"))) for text in texts]
