"""Calibration feeds that come from files."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from amct_onnx.errors import DataError


class FeedSource(ABC):
    """Feeds that can be walked any number of times; each is read when its turn comes."""

    @property
    @abstractmethod
    def files(self) -> Sequence[Path]:
        """Every file that is read."""

    @abstractmethod
    def label(self, number: int) -> str:
        """What messages call the files of one feed."""

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def __iter__(self) -> Iterator[Any]: ...


def files_in(folder: Path, endings: Sequence[str]) -> list[Path]:
    """The files of a folder with these endings, in ascending name order; hidden ones are left out.

    Raises:
        DataError: there is no such folder.
    """
    if not folder.is_dir():
        raise DataError(f"{folder}: no such folder; check the path of the calibration data")
    found = [path for path in folder.iterdir() if path.suffix.lower() in endings and not path.name.startswith(".")]
    return sorted(found, key=lambda path: path.name)
