"""Sizes of all tensors of a model at one feed: inferred, or else seen when it runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Sized
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from onnx import ModelProto

from amct_onnx.analyse.feeds import Feed, iterate_feeds
from amct_onnx.analyse.fitting.data import FittingData
from amct_onnx.analyse.input_shapes import check_input_shapes, input_shape_text
from amct_onnx.analyse.segments import inputs_alone
from amct_onnx.analyse.walk import Watcher, is_empty, walk
from amct_onnx.errors import AmctError, DataError, ModelError
from amct_onnx.graph.shapes import infer_infos
from amct_onnx.graph.weights import Array
from amct_onnx.runtime import InputSpec, input_specs, open_session
from amct_onnx.runtime.shapes import run_shapes
from amct_onnx.wording import counted

_LEAST_PROBES, _MOST_PROBES = 3, 16
"""Feeds on which losses are measured."""
_PROBED_SAMPLES = 64
"""Samples that they should hold together; of the first 3 lines of text alone, every layer looks as if it could go."""
_PROBED_SHARE = 5
"""At most every fifth feed, or there is too little to fit to."""
_LEAST_TO_SPLIT = 8
"""Fewer feeds are not split."""
_BATCH, _IMAGE, _SEQUENCE = 2, 64, 16
"""What is taken for free sizes when nobody says: batch, sides of images, anything else."""


def sample_feed(proto: ModelProto, base_dir: Path | None, sizes: Mapping[str, Sequence[int]], *, seed: int = 0) -> Feed:
    """Random values for every input.

    Args:
        proto: the model.
        base_dir: folder of its external weights.
        sizes: input -> shape; others get their own fixed sizes, and usual ones for those that are free.
        seed: of the values.

    Raises:
        UsageError: a shape that no input of the model can have.
    """
    check_input_shapes(proto, sizes)
    rng = np.random.default_rng(seed)
    specs = input_specs(open_session(proto, base_dir=base_dir, part=inputs_alone(proto)))
    return {spec.name: _values(spec, sizes.get(spec.name, _usual(spec)), rng) for spec in specs}


def first_feeds(proto: ModelProto, base_dir: Path | None, data: Any, count: int | None) -> list[Feed]:
    """The first feeds of some data, at most `count` where it is given; none when there is no data."""
    if data is None:
        return []
    specs = input_specs(open_session(proto, base_dir=base_dir, part=inputs_alone(proto)))
    found = list(islice((feed for feed in iterate_feeds(data, specs) if not is_empty(feed, specs)), count))
    if not found:
        raise DataError("the calibration data holds no feed with a sample; give at least one")
    return found


def held_out(proto: ModelProto, base_dir: Path | None, given: FittingData) -> tuple[FittingData, list[Feed]]:
    """The data without its last feeds, and these, to measure on; of few feeds all, and the first."""
    feeds = given.data
    total = given.feeds
    if isinstance(feeds, Sized):
        total = len(feeds) if total is None else min(len(feeds), total)
    if total is None or total < _LEAST_TO_SPLIT:
        return given, first_feeds(proto, base_dir, feeds, min(total or _LEAST_PROBES, _LEAST_PROBES))
    first = first_feeds(proto, base_dir, feeds, 1)
    count = total - _probes(first[0], total)
    specs = input_specs(open_session(proto, base_dir=base_dir, part=inputs_alone(proto)))
    last = [feed for feed in islice(iterate_feeds(feeds, specs), count, total) if not is_empty(feed, specs)]
    return (replace(given, feeds=count), last) if last else (given, first)


def _probes(feed: Feed, total: int) -> int:
    """How many feeds like this one, of so many, losses are measured on."""
    samples = max([1, *(len(array) for array in feed.values() if array.ndim)])
    return max(_LEAST_PROBES, min(-(-_PROBED_SAMPLES // samples), _MOST_PROBES, total // _PROBED_SHARE))


def _usual(spec: InputSpec) -> tuple[int, ...]:
    inner = _IMAGE if len(spec.shape) == 4 else _SEQUENCE
    return tuple(
        size if isinstance(size, int) else (_BATCH if axis == 0 else inner) for axis, size in enumerate(spec.shape)
    )


def _values(spec: InputSpec, shape: Sequence[int], rng: np.random.Generator) -> Array:
    if spec.dtype is not None and spec.dtype.kind == "f":
        return rng.normal(size=shape).astype(spec.dtype)
    # Token numbers, masks and lengths: one is legal nearly everywhere.
    return np.ones(shape, spec.dtype)


@dataclass(frozen=True)
class FoundShapes:
    """Shapes of tensors at one feed.

    Attributes:
        shapes: tensor -> shape, of those that are known.
        missing: tensors whose shapes only a run could tell, where there was none.
        failure: why the model does not run on the feed; empty where it does, or need not.
    """

    shapes: dict[str, tuple[int, ...]]
    missing: tuple[str, ...] = ()
    failure: str = ""

    def note(self, taken: Mapping[str, Sequence[int]]) -> str:
        """What a report says of missing shapes, given the sizes that were taken for free ones; empty when none are."""
        if not self.missing:
            return ""
        at = f" at {input_shape_text(taken)}" if taken else ""
        return (
            f"sizes of {counted(len(self.missing), 'tensor')} are not known, first of '{self.missing[0]}', and "
            f"channels are not followed through them, since the model does not run{at} ({self.failure}); give sizes at "
            "which it runs "
            "with --input-shape (input_shapes), or --data"
        )


def free_sizes(proto: ModelProto, feed: Feed) -> dict[str, tuple[int, ...]]:
    """Inputs whose sizes the model leaves free, at least in part -> their shapes in a feed."""
    return {
        info.name: feed[info.name].shape
        for info in proto.graph.input
        if info.name in feed and not all(dim.HasField("dim_value") for dim in info.type.tensor_type.shape.dim)
    }


def tensor_shapes(proto: ModelProto, base_dir: Path | None, feed: Feed) -> dict[str, tuple[int, ...]]:
    """Shapes alone, see :func:`find_shapes`."""
    return find_shapes(proto, base_dir, feed).shapes


def find_shapes(proto: ModelProto, base_dir: Path | None, feed: Feed) -> FoundShapes:
    """Shape of every tensor of the main graph that inference can tell, or a run shows.

    Args:
        proto: the model.
        base_dir: folder of its external weights.
        feed: one feed; free sizes are as it has them.
    """
    infos = infer_infos(proto, base_dir, {name: array.shape for name, array in feed.items()}, bodies=True)
    shapes: dict[str, tuple[int, ...]] = {}
    for name, info in infos.items():
        kind = info.type.tensor_type
        is_known = info.type.HasField("tensor_type") and kind.HasField("shape")
        # Where a window is larger than what it slides over, inference goes below 0.
        if is_known and all(dim.HasField("dim_value") and dim.dim_value >= 0 for dim in kind.shape.dim):
            shapes[name] = tuple(int(dim.dim_value) for dim in kind.shape.dim)
    made = [name for node in proto.graph.node for name in node.output if name and name not in shapes]
    missing = [name for name in made if name not in infos or infos[name].type.HasField("tensor_type")]
    if missing:
        try:
            shapes.update(_seen(proto, base_dir, feed, missing))
        except AmctError as error:
            # The feed was made up, and has no number for a user.
            return FoundShapes(shapes, tuple(missing), str(error).removeprefix("feed 0: "))
    return FoundShapes(shapes)


def _seen(proto: ModelProto, base_dir: Path | None, feed: Feed, names: Sequence[str]) -> dict[str, tuple[int, ...]]:
    """Shapes of tensors in one run."""
    try:
        return run_shapes(proto, base_dir, feed, names)
    except ModelError:
        # What inference knows no type of may be a sequence, which has no shape.
        return _watched(proto, base_dir, feed, names)


def _watched(proto: ModelProto, base_dir: Path | None, feed: Feed, names: Sequence[str]) -> dict[str, tuple[int, ...]]:
    """Those of float tensors, each of which is fetched."""
    seen: dict[str, tuple[int, ...]] = {}

    def watch(name: str) -> list[Watcher]:
        def note(array: Array) -> None:
            seen[name] = array.shape

        return [note]

    walk(proto, base_dir, {name: watch(name) for name in names}, [feed])
    return seen
