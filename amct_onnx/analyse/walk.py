"""One walk over the calibration data: the model runs on every feed, and tensors go to whoever watches them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, TypeAlias

from onnx import ModelProto, ValueInfoProto

from amct_onnx.analyse.feeds import Feed, feed_label, iterate_feeds
from amct_onnx.errors import DataError
from amct_onnx.graph.weights import Array
from amct_onnx.runtime import InferenceSession, fetch, input_specs, open_session

KEPT_SAMPLES = 4

Progress: TypeAlias = Callable[[Iterable[Feed]], Iterable[Feed]]
Watcher: TypeAlias = Callable[[Array], None]
"""Takes a tensor of one run; it may not keep it."""
Watchers: TypeAlias = Mapping[str, Sequence[Watcher]]


@dataclass(frozen=True)
class Walk:
    """What a walk leaves besides what the watchers keep.

    Attributes:
        feeds: number of feeds run.
        samples: the first feeds.
        not_float: watched tensors that turned out not to be float32; their watchers saw nothing.
    """

    feeds: int
    samples: tuple[Feed, ...]
    not_float: frozenset[str]


def walk(
    proto: ModelProto,
    base_dir: Path | None,
    watchers: Watchers,
    data: Any,
    *,
    progress: Progress | None = None,
    limit: int | None = None,
) -> Walk:
    """Run the float model on every feed and hand out the watched tensors.

    Args:
        proto: the source model, untouched.
        base_dir: folder of its external weights.
        watchers: tensor name (an input, an output or anything in between) -> who wants to see it.
        data: see :func:`amct_onnx.analyse.feeds.iterate_feeds`.
        progress: wraps the iterator of feeds.
        limit: how many feeds to run, which the data must hold; None for all.

    Raises:
        DataError: no feed, fewer than asked for, or a feed that does not fit.
        ModelError: onnxruntime cannot load the model.
    """
    session = open_session(_with_outputs(proto, watchers), base_dir=base_dir, lean=True)
    inputs = input_specs(session)
    kinds = {node.name: node.type for node in (*session.get_inputs(), *session.get_outputs())}
    not_float = frozenset(name for name in watchers if kinds.get(name) != "tensor(float)")
    fed = {spec.name for spec in inputs}
    fetched = [name for name in watchers if name not in fed | not_float]
    samples: list[Feed] = []
    count = 0
    feeds = islice(iterate_feeds(data, inputs), limit)
    for feed in progress(feeds) if progress else feeds:
        for name in (watchers.keys() & feed.keys()) - not_float:
            _show(watchers[name], feed[name])
        try:
            _run(session, fetched, feed, watchers)
        except DataError as error:
            raise DataError(f"{feed_label(data, count)}: {error}") from error
        count += 1
        if len(samples) < KEPT_SAMPLES:
            samples.append(feed)
    if not count:
        raise DataError("the calibration data holds no feed; give at least one sample")
    check_enough(count, limit)
    return Walk(count, tuple(samples), not_float)


def check_enough(count: int, wanted: int | None) -> None:
    """Raise :class:`DataError` if there are fewer feeds than a config asks for."""
    if wanted is not None and count < wanted:
        raise DataError(
            f"batch_num is {wanted}, but the calibration data holds {count} feed{'s' if count > 1 else ''}; "
            "give more data, or lower batch_num in the config"
        )


def _run(session: InferenceSession, names: Sequence[str], feed: Feed, watchers: Watchers) -> None:
    """Run one feed; a function of its own, so that its tensors are gone before the next one runs."""
    arrays = fetch(session, names, feed)
    arrays.reverse()
    for name in names:
        _show(watchers[name], arrays.pop())


def _show(watchers: Sequence[Watcher], array: Array) -> None:
    for watcher in watchers:
        watcher(array)


def _with_outputs(proto: ModelProto, tensors: Iterable[str]) -> ModelProto:
    """`proto` with `tensors` as further graph outputs, so that the runtime hands them out."""
    given = {info.name for info in (*proto.graph.input, *proto.graph.output)}
    extra = [name for name in tensors if name not in given]
    augmented = ModelProto()
    augmented.CopyFrom(proto)
    # Without a type, which the runtime finds out by itself.
    augmented.graph.output.extend(ValueInfoProto(name=name) for name in extra)
    return augmented
