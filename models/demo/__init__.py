"""The packaged demo: a small trained MNIST classifier with labelled data.

``load()`` gives everything a first experiment needs; where model and data come from stands in the ``README.md`` beside
this file. Calibration images are training images, so that no scored image is ever calibrated on.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

__all__ = ["INPUT_NAME", "OUTPUT_NAME", "Demo", "load", "preprocess"]

INPUT_NAME = "image"
OUTPUT_NAME = "logits"

_MEAN = np.float32(0.1307)
_STD = np.float32(0.3081)
_FOLDER = Path(__file__).resolve().parent


def preprocess(pixels: NDArray[np.uint8]) -> NDArray[np.float32]:
    """Turn grey values 0..255 into what the model was trained on: ``(pixels / 255 - 0.1307) / 0.3081``."""
    scaled: NDArray[np.float32] = (pixels.astype(np.float32) / np.float32(255) - _MEAN) / _STD
    return scaled


@dataclass(frozen=True)
class Demo:
    """The demo model with its data, ready to feed.

    Attributes:
        model_path: The ONNX file: input ``image`` float32 [N, 1, 28, 28], output ``logits`` float32 [N, 10].
        calibration_images: 200 preprocessed training images, float32 [200, 1, 28, 28].
        calibration_labels: Their digits, int64 [200].
        test_images: 1,000 preprocessed test images, float32 [1000, 1, 28, 28].
        test_labels: Their digits, int64 [1000].
    """

    model_path: Path
    calibration_images: NDArray[np.float32]
    calibration_labels: NDArray[np.int64]
    test_images: NDArray[np.float32]
    test_labels: NDArray[np.int64]


def load() -> Demo:
    """Read the packaged data and return it preprocessed, together with the path of the model."""
    calibration_images, calibration_labels = _read("calibration.npz")
    test_images, test_labels = _read("test.npz")
    return Demo(
        model_path=_FOLDER / "mnist_mobilenet.onnx",
        calibration_images=calibration_images,
        calibration_labels=calibration_labels,
        test_images=test_images,
        test_labels=test_labels,
    )


def _read(name: str) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Read one packaged archive: preprocessed images and labels."""
    with np.load(_FOLDER / name) as archive:
        return preprocess(archive["images"]), archive["labels"]
