"""Calibration feeds from files: ``.npz`` archives with one feed each, or ``.npy`` arrays for models of one input."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from amct_onnx.analyse.feed_source import FeedSource, files_in
from amct_onnx.errors import DataError

_ENDINGS = (".npz", ".npy")
_BEGINNINGS = (b"PK\x03\x04", b"PK\x05\x06", b"\x93NUMPY", b"\x80")


class FeedFiles(FeedSource):
    """One feed per numpy file, in name order."""

    def __init__(self, files: Sequence[Path]) -> None:
        self._files = files

    @property
    def files(self) -> Sequence[Path]:
        """One file per feed."""
        return self._files

    def label(self, number: int) -> str:
        """The file of one feed."""
        return str(self._files[number])

    def __len__(self) -> int:
        return len(self._files)

    def __iter__(self) -> Iterator[dict[str, NDArray[Any]] | NDArray[Any]]:
        return (_read(path) for path in self._files)


def find_feeds(path: Path) -> FeedFiles:
    """Feeds of a ``.npz`` or ``.npy`` file, or of all such files in a folder.

    Raises:
        DataError: nothing is there, the folder mixes both kinds, or the file is of another kind.
    """
    if path.is_dir():
        return FeedFiles(_in_folder(path))
    if not path.exists():
        raise DataError(f"{path}: no such file or folder; check the path of the calibration data")
    if path.suffix.lower() not in _ENDINGS:
        raise DataError(f"{path}: calibration data must be .npz or .npy or an image, or a folder of them")
    return FeedFiles([path])


def _in_folder(folder: Path) -> list[Path]:
    files = files_in(folder, _ENDINGS)
    kinds = {path.suffix.lower() for path in files}
    if not files:
        raise DataError(
            f"{folder}: the folder holds no .npz or .npy file (nor .bin files or images); save each feed as one .npz"
        )
    if len(kinds) > 1:
        raise DataError(f"{folder}: the folder mixes .npz and .npy files; keep one kind")
    return files


def _read(path: Path) -> dict[str, NDArray[Any]] | NDArray[Any]:
    try:
        _check_kind(path)
        loaded = np.load(path, allow_pickle=False)
        if isinstance(loaded, np.ndarray):
            return loaded
        with loaded as archive:
            return {name: _member(archive, name) for name in archive.files}
    except MemoryError as error:
        raise DataError(f"{path}: does not fit into memory; split it into smaller feeds") from error
    except Exception as error:
        # A damaged archive fails in many ways: zip, its compressors, numpy's headers and Python's tokenizer in them.
        raise DataError(
            f"{path}: cannot be read as a numpy file ({_reason(error)}); write it with numpy.savez or numpy.save"
        ) from error


def _check_kind(path: Path) -> None:
    """numpy takes whatever it does not know for pickled objects."""
    with path.open("rb") as stream:
        beginning = stream.read(max(len(mark) for mark in _BEGINNINGS))
    if not beginning.startswith(_BEGINNINGS):
        raise ValueError("it holds neither an array nor an archive" if beginning else "it is empty")


def _member(archive: Any, name: str) -> NDArray[Any]:
    member = archive[name]
    if not isinstance(member, np.ndarray):
        raise ValueError(f"its member '{name}' is not an array")
    return member


def _reason(error: Exception) -> str:
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    text = "it holds Python objects, not numbers" if "allow_pickle" in str(error) else str(error).split("\n")[0]
    return text or type(error).__name__
