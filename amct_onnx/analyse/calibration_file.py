"""Calibration statistics on disk: re-quantize with another method without data, or join what several machines saw."""

from __future__ import annotations

import io
import json
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from amct_onnx.analyse.engine import Calibration
from amct_onnx.analyse.statistics import TensorStatistics
from amct_onnx.errors import DataError
from amct_onnx.graph.files import replacing

FORMAT_VERSION = 1


def save_calibration(calibration: Calibration, path: str | os.PathLike[str]) -> None:
    """Write statistics as a ``.npz`` archive: a JSON header and one array per tensor (its values or its histogram)."""
    tensors: list[dict[str, Any]] = []
    arrays: dict[str, Any] = {}
    for index, (name, seen) in enumerate(calibration.statistics.items()):
        tensors.append({"name": name, **seen.summary()})
        arrays[str(index)] = seen.stored()
    header = {
        "format": FORMAT_VERSION,
        "source_sha256": calibration.source_sha256,
        "feeds": calibration.feeds,
        "not_float": sorted(calibration.not_float),
        "tensors": tensors,
    }
    stream = io.BytesIO()
    np.savez_compressed(stream, header=np.frombuffer(json.dumps(header).encode(), np.uint8), **arrays)
    with replacing(Path(path)) as temporary:
        temporary.write_bytes(stream.getvalue())


def load_calibration(path: str | os.PathLike[str]) -> Calibration:
    """Read what :func:`save_calibration` wrote.

    Raises:
        DataError: the file cannot be read or was not written by it.
    """
    try:
        with np.load(path, allow_pickle=False) as archive:
            header = json.loads(archive["header"].tobytes())
            if header["format"] > FORMAT_VERSION:
                raise DataError(f"{path}: statistics of format {header['format']}; install a newer amct_onnx")
            statistics = {
                entry["name"]: TensorStatistics.restored(entry, archive[str(index)])
                for index, entry in enumerate(header["tensors"])
            }
            not_float = frozenset(header["not_float"])
            return Calibration(
                statistics, int(header["feeds"]), source_sha256=header["source_sha256"], not_float=not_float
            )
    except DataError:
        raise
    except OSError as error:
        raise DataError(f"{path}: cannot read statistics: {error.strerror or error}; check the path") from error
    except Exception as error:
        # A damaged archive fails in many ways: zip, its compressors, numpy's headers, JSON and what it should hold.
        raise DataError(f"{path}: these are no statistics of amct_onnx; write them with --save-statistics") from error


def merge_calibrations(parts: Sequence[Calibration]) -> Calibration:
    """Join statistics of one model over different data; what comes out equals one walk over all of it.

    Raises:
        DataError: nothing to join, or the parts are of different models or tensors.
    """
    if not parts:
        raise DataError("no statistics to join; give at least one file")
    first = parts[0]
    for part in parts[1:]:
        is_same = part.source_sha256 == first.source_sha256 and part.statistics.keys() == first.statistics.keys()
        if not is_same:
            raise DataError(
                "the statistics are of different models or tensors; calibrate all shards with the same options"
            )
    merged: dict[str, TensorStatistics] = {}
    for name in first.statistics:
        merged[name] = TensorStatistics()
        for part in parts:
            merged[name].merge(part.statistics[name])
    return replace(first, statistics=merged, feeds=sum(part.feeds for part in parts))
