"""One walk over the calibration data for everything that any quantizer wants to know."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from onnx import ModelProto, ValueInfoProto

from amct_onnx.analyse.feeds import Feed, feed_label, iterate_feeds
from amct_onnx.analyse.statistics import TensorStatistics
from amct_onnx.errors import DataError
from amct_onnx.runtime import InferenceSession, fetch, input_specs, open_session

logger = logging.getLogger(__name__)

KEPT_SAMPLES = 4

Progress = Callable[[Iterable[Feed]], Iterable[Feed]]


@dataclass(frozen=True)
class Calibration:
    """The outcome of one walk.

    Attributes:
        statistics: tensor name -> what was seen of it.
        feeds: number of feeds run.
        samples: the first feeds, kept to try the compressed models on.
        source_sha256: digest of the model.
        not_float: observed tensors that turned out not to be float32; nothing is known of them.
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
        keep_values: whether values or histograms are wanted besides extremes.
        progress: wraps the iterator of feeds.
        limit: how many feeds to run, which the data must hold; None for all.

    Raises:
        DataError: no feed, fewer than asked for, or a feed that does not fit.
        ModelError: onnxruntime cannot load the model.
    """
    session = open_session(_with_outputs(proto, tensors), base_dir=base_dir, lean=True)
    statistics = {name: TensorStatistics(keep_values) for name in tensors}
    inputs = input_specs(session)
    kinds = {node.name: node.type for node in (*session.get_inputs(), *session.get_outputs())}
    not_float = frozenset(name for name in tensors if kinds.get(name) != "tensor(float)")
    fed = {spec.name for spec in inputs}
    fetched = [name for name in tensors if name not in fed | not_float]
    feeds = islice(iterate_feeds(data, inputs), limit)
    samples: list[Feed] = []
    count = 0
    for feed in progress(feeds) if progress else feeds:
        for name in (statistics.keys() & feed.keys()) - not_float:
            statistics[name].update(feed[name])
        try:
            _observe(session, fetched, feed, statistics)
        except DataError as error:
            raise DataError(f"{feed_label(data, count)}: {error}") from error
        count += 1
        if len(samples) < KEPT_SAMPLES:
            samples.append(feed)
    if not count:
        raise DataError("the calibration data holds no feed; give at least one sample")
    check_enough(count, limit)
    _report_not_finite(statistics)
    return Calibration(statistics, count, tuple(samples), not_float=not_float)


def check_enough(count: int, wanted: int | None) -> None:
    """Raise :class:`DataError` if there are fewer feeds than a config asks for."""
    if wanted is not None and count < wanted:
        raise DataError(
            f"batch_num is {wanted}, but the calibration data holds {count} feed{'s' if count > 1 else ''}; "
            "give more data, or lower batch_num in the config"
        )


def _observe(
    session: InferenceSession, names: Sequence[str], feed: Feed, statistics: dict[str, TensorStatistics]
) -> None:
    """Run one feed; a function of its own, so that its tensors are gone before the next one runs."""
    arrays = fetch(session, names, feed)
    arrays.reverse()
    for name in names:
        statistics[name].update(arrays.pop())


def _with_outputs(proto: ModelProto, tensors: Sequence[str]) -> ModelProto:
    """`proto` with `tensors` as further graph outputs, so that the runtime hands them out."""
    given = {info.name for info in (*proto.graph.input, *proto.graph.output)}
    extra = [name for name in tensors if name not in given]
    augmented = ModelProto()
    augmented.CopyFrom(proto)
    # Without a type, which the runtime finds out by itself.
    augmented.graph.output.extend(ValueInfoProto(name=name) for name in extra)
    return augmented


def _report_not_finite(statistics: dict[str, TensorStatistics]) -> None:
    dirty = {name: seen for name, seen in statistics.items() if seen.nan or seen.inf}
    if not dirty:
        return
    name, seen = next(iter(dirty.items()))
    logger.warning(
        "%d tensors held values that are not finite, first '%s' (%d NaN, %d infinite); statistics leave them out: "
        "check the calibration data",
        len(dirty),
        name,
        seen.nan,
        seen.inf,
    )
    for name, seen in dirty.items():
        logger.info("tensor '%s' held %d NaN and %d infinite values", name, seen.nan, seen.inf)
