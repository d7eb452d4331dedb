"""Photos cut and scaled for classifiers trained on ImageNet."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from PIL import Image

SIDE = 224
SHORT_SIDE = 256
_MEAN = np.array([0.485, 0.456, 0.406], np.float32)
_STD = np.array([0.229, 0.224, 0.225], np.float32)


def centre(photo: Image.Image) -> NDArray[np.float32]:
    """Scale the shorter side to 256 and cut the middle 224 x 224: how such classifiers are scored."""
    width, height = photo.size
    scale = SHORT_SIDE / min(width, height)
    scaled = photo.resize((round(width * scale), round(height * scale)), Image.Resampling.BILINEAR)
    left, top = (scaled.width - SIDE) // 2, (scaled.height - SIDE) // 2
    return normalize(scaled.crop((left, top, left + SIDE, top + SIDE)))


def random_crop(photo: Image.Image, generator: np.random.Generator) -> NDArray[np.float32]:
    """Cut a square of 50 to 100 % of the shorter side anywhere, mirror it half the time, and scale it."""
    width, height = photo.size
    side = round(min(width, height) * generator.uniform(0.5, 1.0))
    left, top = int(generator.integers(0, width - side + 1)), int(generator.integers(0, height - side + 1))
    crop = photo.resize((SIDE, SIDE), Image.Resampling.BILINEAR, (left, top, left + side, top + side))
    if generator.random() < 0.5:
        crop = crop.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    return normalize(crop)


def normalize(crop: Image.Image) -> NDArray[np.float32]:
    """Turn an RGB crop into float32 [3, H, W] with ImageNet's mean and deviation."""
    pixels = np.asarray(crop.convert("RGB"), np.float32) / np.float32(255)
    return np.ascontiguousarray(((pixels - _MEAN) / _STD).transpose(2, 0, 1))
