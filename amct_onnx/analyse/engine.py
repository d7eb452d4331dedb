"""One walk over the calibration data for everything that any quantizer wants to know."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from onnx import ModelProto, TensorProto, helper

from amct_onnx.analyse.feeds import Feed, iterate_feeds
from amct_onnx.analyse.statistics import TensorStatistics
from amct_onnx.errors import DataError
from amct_onnx.runtime import fetch, input_specs, open_session

logger = logging.getLogger(__name__)

KEPT_SAMPLES = 2

Progress = Callable[[Iterable[Feed]], Iterable[Feed]]


@dataclass(frozen=True)
class Calibration:
    """The outcome of one walk.

    Attributes:
        statistics: tensor name -> what was seen of it.
        feeds: number of feeds run.
        samples: the first feeds, kept to try the compressed models on.
        source_sha256: digest of the model.
    """

    statistics: dict[str, TensorStatistics]
    feeds: int
    samples: tuple[Feed, ...] = ()
    source_sha256: str | None = None


def calibrate(
    proto: ModelProto,
    base_dir: Path | None,
    tensors: Sequence[str],
    data: Any,
    *,
    keep_values: bool = True,
    progress: Progress | None = None,
) -> Calibration:
    """Run the float model on every feed and watch `tensors`.

    Args:
        proto: the source model, untouched.
        base_dir: folder of its external weights.
        tensors: names of float tensors: inputs, outputs or anything in between.
        data: see :func:`amct_onnx.analyse.feeds.iterate_feeds`.
        keep_values: whether values or histograms are wanted besides extremes.
        progress: wraps the iterator of feeds.

    Raises:
        DataError: no feed, a feed that does not fit, or a tensor without a single finite value.
    """
    session = open_session(_with_outputs(proto, tensors), base_dir=base_dir, lean=True)
    statistics = {name: TensorStatistics(keep_values) for name in tensors}
    inputs = input_specs(session)
    fed = {spec.name for spec in inputs}
    fetched = [name for name in tensors if name not in fed]
    feeds = iterate_feeds(data, inputs)
    samples: list[Feed] = []
    count = 0
    for feed in progress(feeds) if progress else feeds:
        for name in statistics.keys() & feed.keys():
            statistics[name].update(feed[name])
        for name, array in zip(fetched, fetch(session, fetched, feed), strict=True):
            statistics[name].update(array)
        count += 1
        if len(samples) < KEPT_SAMPLES:
            samples.append(feed)
    if not count:
        raise DataError("the calibration data holds no feed; give at least one sample")
    _report_not_finite(statistics)
    return Calibration(statistics, count, tuple(samples))


def _with_outputs(proto: ModelProto, tensors: Sequence[str]) -> ModelProto:
    """`proto` with `tensors` as further graph outputs, so that the runtime hands them out."""
    given = {info.name for info in (*proto.graph.input, *proto.graph.output)}
    extra = [name for name in tensors if name not in given]
    augmented = ModelProto()
    augmented.CopyFrom(proto)
    augmented.graph.output.extend(helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in extra)
    return augmented


def _report_not_finite(statistics: dict[str, TensorStatistics]) -> None:
    for name, seen in statistics.items():
        if seen.nan or seen.inf:
            logger.warning(
                "tensor '%s' held %d NaN and %d infinite values during calibration; its statistics leave them out",
                name,
                seen.nan,
                seen.inf,
            )
