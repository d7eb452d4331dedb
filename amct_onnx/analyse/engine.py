"""What calibration finds out of a model's tensors: everything that any quantizer wants to know, from one walk."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from onnx import ModelProto

from amct_onnx.analyse.feeds import Feed
from amct_onnx.analyse.statistics import TensorStatistics
from amct_onnx.analyse.walk import Progress, Watcher, walk
from amct_onnx.graph.weights import Array
from amct_onnx.passes.balance import Divided
from amct_onnx.rewrite.prepare import Origin
from amct_onnx.wording import counted

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Calibration:
    """The outcome of one walk.

    Attributes:
        statistics: tensor name -> what was seen of it.
        feeds: number of feeds run.
        samples: the first feeds, kept to try the compressed models on.
        source_sha256: digest of the model.
        not_float: observed tensors that turned out to be no floats, or floats of a type that the model was not known
            to use there; nothing is known of them.
    """

    statistics: dict[str, TensorStatistics]
    feeds: int
    samples: tuple[Feed, ...] = ()
    source_sha256: str | None = None
    not_float: frozenset[str] = frozenset()


def calibrate(
    proto: ModelProto,
    base_dir: Path | None,
    tensors: Sequence[str],
    data: Any,
    *,
    origins: Mapping[str, Origin] | None = None,
    keep_values: bool = True,
    progress: Progress | None = None,
    limit: int | None = None,
) -> Calibration:
    """Run the float model on every feed and watch `tensors`.

    Args:
        proto: the source model, untouched.
        base_dir: folder of its external weights.
        tensors: names of tensors: inputs, outputs or anything in between.
        data: see :func:`amct_onnx.analyse.feeds.iterate_feeds`.
        origins: where the source has the values of `tensors`, when not under their own names.
        keep_values: whether values or histograms are wanted besides extremes.
        progress: wraps the iterator of feeds.
        limit: how many feeds to run, which the data must hold; None for all.

    Raises:
        DataError: no feed, fewer than asked for, or a feed that does not fit.
        ModelError: onnxruntime cannot load the model.
    """
    statistics = {name: TensorStatistics(keep_values) for name in tensors}
    found = {name: (origins or {}).get(name, Origin(name)) for name in tensors}
    watchers: dict[str, list[Watcher]] = {}
    for name, seen in statistics.items():
        change = found[name].change
        watchers.setdefault(found[name].name, []).append(seen.update if change is None else _divided(change, seen))
    done = walk(proto, base_dir, watchers, data, progress=progress, limit=limit)
    _report_not_finite(statistics)
    unusable = frozenset(
        name
        for name, origin in found.items()
        if origin.name in done.not_float or (origin.name in done.other_floats and not origin.is_lifted)
    )
    return Calibration(statistics, done.feeds, done.samples, not_float=unusable)


def _divided(change: Divided, seen: TensorStatistics) -> Watcher:
    def update(array: Array) -> None:
        seen.update(change.of(array))

    return update


def _report_not_finite(statistics: dict[str, TensorStatistics]) -> None:
    dirty = {name: seen for name, seen in statistics.items() if seen.nan or seen.inf}
    if not dirty:
        return
    name, seen = next(iter(dirty.items()))
    logger.warning(
        "%s held values that are not finite, first '%s' (%d NaN, %d infinite); statistics leave them out: "
        "check the calibration data",
        counted(len(dirty), "tensor"),
        name,
        seen.nan,
        seen.inf,
    )
    for name, seen in dirty.items():
        logger.info("tensor '%s' held %d NaN and %d infinite values", name, seen.nan, seen.inf)
