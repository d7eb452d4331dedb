"""One walk over the calibration data: the model runs on every feed, and tensors go to whoever watches them."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from onnx import ModelProto

from amct_onnx.analyse.feeds import Feed, feed_label, iterate_feeds
from amct_onnx.analyse.resume import Resumed, feed_key
from amct_onnx.analyse.segments import inputs_alone, segments
from amct_onnx.errors import DataError
from amct_onnx.graph.weights import Array
from amct_onnx.runtime import InputSpec, fetch, input_specs, open_session
from amct_onnx.runtime.memory import empty_shared_arena

logger = logging.getLogger(__name__)

KEPT_SAMPLES = 4
_OTHER_FLOATS = frozenset({"tensor(float16)", "tensor(double)"})
_FLOATS = _OTHER_FLOATS | {"tensor(float)"}

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
        not_float: watched tensors that turned out to be of no float type; their watchers saw nothing.
        other_floats: those that turned out to be float16 or float64.
    """

    feeds: int
    samples: tuple[Feed, ...]
    not_float: frozenset[str]
    other_floats: frozenset[str]


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
    inputs = input_specs(open_session(proto, base_dir=base_dir, part=inputs_alone(proto)))
    fed = {spec.name: spec.kind for spec in inputs}
    samples: list[Feed] = []
    count = 0
    opened: _Opened | None = None
    number = -1
    feeds = iterate_feeds(data, inputs)
    try:
        for number, feed in enumerate(progress(feeds) if progress else feeds):
            if is_empty(feed, inputs):
                continue
            opened = opened or _Opened(proto, base_dir, watchers, fed, feed)
            try:
                opened.run(feed)
            except DataError as error:
                raise DataError(f"{feed_label(data, number)}: {error}") from error
            count += 1
            if len(samples) < KEPT_SAMPLES:
                samples.append(feed)
            if count == limit:
                break
    finally:
        if opened:
            opened.close()
    if opened is None and number >= 0:
        raise DataError(f"all {number + 1} feeds of the calibration data are empty batches; give at least one sample")
    if opened is None:
        raise DataError("the calibration data holds no feed; give at least one sample")
    check_enough(count, limit)
    return Walk(count, tuple(samples), opened.not_float, opened.other_floats)


def walk_together(
    models: Sequence[Resumed],
    data: Any,
    take: Callable[[Sequence[Mapping[str, Array]], str], None],
    *,
    progress: Progress | None = None,
    limit: int | None = None,
) -> int:
    """Run several models of the same inputs on every feed, and hand out what is wanted of all of them at once.

    Args:
        models: the models, each of which has begun a walk.
        data: see :func:`amct_onnx.analyse.feeds.iterate_feeds`.
        take: is given the tensors of each model, by name, and how messages name the feed, after every feed; it may not
            keep the tensors.
        progress: wraps the iterator of feeds.
        limit: how many feeds to run at most; None for all.

    Returns:
        The number of feeds run.

    Raises:
        DataError: the data, which held feeds when it was first looked at, holds none any more.
    """
    inputs = models[0].inputs
    count = 0
    feeds = iterate_feeds(data, inputs)
    for number, feed in enumerate(progress(feeds) if progress else feeds):
        if is_empty(feed, inputs):
            continue
        key = feed_key(feed)
        take([model.run(feed, key) for model in models], feed_label(data, number))
        count += 1
        if count == limit:
            break
    _check_all_there(models[0], count)
    return count


def _check_all_there(model: Resumed, count: int) -> None:
    """Every walk has to hold the feeds of the one before: what is found in it is put beside what was found there."""
    before, model.feeds = model.feeds, max(model.feeds, count)
    remedy = "give a list, or an iterable that begins anew each time"
    if not count:
        raise DataError(f"the data is walked several times, and held no feed in a later walk; {remedy}")
    if count < before:
        logger.warning("feeds went missing: the data held %d in one walk, %d in a later one; %s", before, count, remedy)


def is_empty(feed: Feed, inputs: Sequence[InputSpec]) -> bool:
    """Whether a feed is a batch of nothing: every array whose first size is free has none; a cache may be empty."""
    batches = [
        len(feed[spec.name]) for spec in inputs if feed[spec.name].ndim and not isinstance((*spec.shape, None)[0], int)
    ]
    return bool(batches) and not any(batches)


def check_enough(count: int, wanted: int | None, source: str = "") -> None:
    """Raise :class:`DataError` if there are fewer feeds than a config asks for; `source` names it."""
    if wanted is not None and count < wanted:
        where = f"{source}: " if source else ""
        raise DataError(
            f"{where}batch_num is {wanted}, but the calibration data holds {count} feed{'s' if count > 1 else ''}; "
            "give more data, or lower batch_num"
        )


class _Opened:
    """A model opened in parts, as the first feed asks for."""

    def __init__(
        self, proto: ModelProto, base_dir: Path | None, watchers: Watchers, fed: Mapping[str, str], feed: Feed
    ) -> None:
        self._watchers = watchers
        shapes = {name: array.shape for name, array in feed.items()}
        self._parts = segments(proto, base_dir, watchers.keys(), shapes)
        is_cut = len(self._parts) > 1
        self._sessions = [
            open_session(proto, base_dir=base_dir, part=part, lean=True, share_arena=is_cut) for part in self._parts
        ]
        kinds = {node.name: node.type for session in self._sessions for node in session.get_outputs()}
        kinds.update(fed)
        self.not_float = frozenset(name for name in watchers if kinds.get(name) not in _FLOATS)
        self.other_floats = frozenset(name for name in watchers if kinds.get(name) in _OTHER_FLOATS)
        reads = [{info.name for info in part.inputs} for part in self._parts]
        self._later = [frozenset[str]().union(*reads[index + 1 :]) for index in range(len(reads))]
        shown = watchers.keys() - self.not_float - fed.keys()
        self._wanted = [
            [info.name for info in part.outputs if info.name in shown | later]
            for part, later in zip(self._parts, self._later, strict=True)
        ]

    def run(self, feed: Feed) -> None:
        """Run one feed and show its tensors; each is gone once it was seen and no later part reads it."""
        for name in (self._watchers.keys() & feed.keys()) - self.not_float:
            _show(self._watchers[name], feed[name])
        alive = dict(feed)
        for session, names, later in zip(self._sessions, self._wanted, self._later, strict=True):
            arrays = fetch(session, names, {node.name: alive[node.name] for node in session.get_inputs()})
            alive = {name: array for name, array in alive.items() if name in later}
            alive.update((name, array) for name, array in zip(names, arrays, strict=True) if name in later)
            arrays.reverse()
            for name in names:
                _show(self._watchers.get(name, ()), arrays.pop())

    def close(self) -> None:
        """Give the memory back."""
        self._sessions.clear()
        if len(self._parts) > 1:
            empty_shared_arena()


def _show(watchers: Sequence[Watcher], array: Array) -> None:
    for watcher in watchers:
        watcher(array)
