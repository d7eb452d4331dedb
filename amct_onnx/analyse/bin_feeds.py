"""Calibration feeds from raw ``.bin`` files: one folder per input, file i of each folder forms feed i."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from amct_onnx.analyse.feed_source import FeedSource, files_in
from amct_onnx.errors import DataError, UsageError

BIN_ENDINGS = (".bin",)
DATA_TYPES: Mapping[str, np.dtype[Any]] = {
    name: np.dtype(name)
    for name in (
        *("float16", "float32", "float64"),
        *("int8", "int16", "int32", "int64"),
        *("uint8", "uint16", "uint32", "uint64"),
        "bool",
    )
}


class BinFeeds(FeedSource):
    """Feeds by input name, from files that hold nothing but the values of one input, in row-major order.

    Attributes:
        folders: one per input.
        shapes: input name -> shape of its array, in the order of `folders`.
        dtypes: element type of each input, in the same order.
    """

    def __init__(
        self,
        folders: Sequence[str | os.PathLike[str]],
        shapes: Mapping[str, Sequence[int]],
        dtypes: Sequence[DTypeLike],
    ) -> None:
        """List the files and check their number and sizes.

        Raises:
            UsageError: the numbers of folders, shapes and types differ.
            DataError: a folder is missing or empty, or a file has the wrong size.
        """
        counts = {"folders": len(folders), "input shapes": len(shapes), "data types": len(dtypes)}
        if len(set(counts.values())) > 1:
            listed = ", ".join(f"{count} {what}" for what, count in counts.items())
            raise UsageError(f"{listed} were given; give one of each for every input, in the order of the inputs")
        self.folders = tuple(Path(folder) for folder in folders)
        self.shapes = {name: tuple(shape) for name, shape in shapes.items()}
        self.dtypes = tuple(np.dtype(dtype) for dtype in dtypes)
        self._columns = [_files(folder) for folder in self.folders]
        self._check_counts()
        for name, dtype, column in zip(self.shapes, self.dtypes, self._columns, strict=True):
            for path in column:
                self._check_size(path, name, dtype)

    @property
    def files(self) -> Sequence[Path]:
        """Every file, by feed."""
        return list(chain.from_iterable(zip(*self._columns, strict=True)))

    def label(self, number: int) -> str:
        """The files of one feed."""
        return ", ".join(str(column[number]) for column in self._columns)

    def __len__(self) -> int:
        return len(self._columns[0])

    def __iter__(self) -> Iterator[dict[str, NDArray[Any]]]:
        for row in zip(*self._columns, strict=True):
            parts = zip(self.shapes, self.dtypes, row, strict=True)
            yield {name: self._read(path, name, dtype) for name, dtype, path in parts}

    def _check_counts(self) -> None:
        first, column = self.folders[0], self._columns[0]
        for folder, other in zip(self.folders, self._columns, strict=True):
            if len(other) != len(column):
                raise DataError(
                    f"{first} holds {len(column)} .bin files, {folder} holds {len(other)}; file i of each folder forms "
                    "feed i, so give them equally many"
                )

    def _check_size(self, path: Path, name: str, dtype: np.dtype[Any]) -> None:
        shape = self.shapes[name]
        have, want = path.stat().st_size, math.prod(shape) * dtype.itemsize
        if have != want:
            raise DataError(
                f"{path}: {have} bytes, but input '{name}' of shape [{', '.join(map(str, shape))}] and type "
                f"{dtype.name} takes {want}; correct the input shape or the data type, or write the file again"
            )

    def _read(self, path: Path, name: str, dtype: np.dtype[Any]) -> NDArray[Any]:
        try:
            self._check_size(path, name, dtype)
            return np.fromfile(path, dtype).reshape(self.shapes[name])
        except OSError as error:
            raise DataError(f"{path}: cannot be read: {error.strerror or error}; check the file") from error


def _files(folder: Path) -> list[Path]:
    files = files_in(folder, BIN_ENDINGS)
    if not files:
        raise DataError(f"{folder}: the folder holds no .bin file; save each array of this input as one")
    return files


def load_data(
    input_shape: Mapping[str, Sequence[int]],
    data_dir: Sequence[str | os.PathLike[str]],
    data_types: Sequence[DTypeLike],
    batch_num: int,
) -> Iterator[dict[str, NDArray[Any]]]:
    """Feeds of the first `batch_num` files of each folder, under AMCT's name and order of arguments.

    Raises:
        DataError: there are fewer files.
    """
    feeds = BinFeeds(data_dir, input_shape, data_types)
    if len(feeds) < batch_num:
        raise DataError(
            f"{feeds.folders[0]} holds {len(feeds)} .bin files, fewer than batch_num, which is {batch_num}; give more"
        )
    return islice(iter(feeds), batch_num)


def parse_folders(text: str) -> tuple[Path, ...]:
    """``"first/;second/"`` as paths."""
    return tuple(Path(part.strip()) for part in text.split(";") if part.strip())


def parse_data_types(text: str) -> tuple[np.dtype[Any], ...]:
    """``"float32;int64"`` as numpy types, one per input.

    Raises:
        UsageError: a type is unknown, or none is given.
    """
    names = [part.strip() for part in text.split(";") if part.strip()]
    unknown = next((name for name in names if name not in DATA_TYPES), None)
    if unknown is not None or not names:
        raise UsageError(f"data type '{unknown or text}' is unknown; choose from {', '.join(DATA_TYPES)}")
    return tuple(DATA_TYPES[name] for name in names)
