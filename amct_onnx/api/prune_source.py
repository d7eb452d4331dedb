"""A model as pruning takes it: functions inlined, with feeds to look at it, and the sizes of its tensors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from onnx import ModelProto

from amct_onnx.analyse.feeds import Feed
from amct_onnx.analyse.input_shapes import input_shape_text
from amct_onnx.analyse.shapes import FoundShapes, find_shapes, first_feeds, free_sizes, sample_feed
from amct_onnx.analyse.walk import KEPT_SAMPLES
from amct_onnx.api.prune_check import runs
from amct_onnx.api.quantized import refuse_quantized
from amct_onnx.api.source import Source, load_source, refuse_compressed
from amct_onnx.graph.functions import inline_layer_functions

Sizes = Mapping[str, Sequence[int]]


@dataclass(frozen=True, eq=False)
class PruneSource:
    """A float model, ready to be followed.

    Attributes:
        proto: the model, its functions with layers inlined.
        base_dir: folder of its external weights.
        samples: the first feeds of the data; none without.
        feed: the first of them, or random values.
        found: sizes of its tensors at that feed.
        sizes: inputs whose sizes are free -> the sizes taken.
        is_guessed: whether some of these are neither the data's nor given.
    """

    proto: ModelProto
    base_dir: Path | None
    samples: tuple[Feed, ...]
    feed: Feed
    found: FoundShapes
    sizes: dict[str, tuple[int, ...]]
    is_guessed: bool

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Tensor -> shape."""
        return self.found.shapes

    @property
    def remedy(self) -> str:
        """What helps where the model does not run at the free sizes that were chosen for it; empty elsewhere."""
        if not self.is_guessed or runs(self.proto, self.base_dir, self.feed):
            return ""
        return (
            f"free sizes were taken as {input_shape_text(self.sizes)}, at which the model does not run; give others "
            "with --input-shape (input_shapes), or --data"
        )

    @property
    def notes(self) -> tuple[str, ...]:
        """What a report should say of sizes that are not known."""
        note = self.found.note(self.sizes)
        return (note,) if note else ()


def load_float(model: Source) -> tuple[ModelProto, Path | None]:
    """Read a model that can be pruned; raises :class:`ModelError` for one that has been quantized or compressed."""
    proto, base_dir = load_source(model)
    refuse_compressed(proto)
    refuse_quantized(proto)
    return proto, base_dir


def prune_source(
    whole: ModelProto, base_dir: Path | None, *, data: Any = None, input_shapes: Sizes | None = None
) -> PruneSource:
    """Look at a model on the first feed of some data, or else at given sizes and usual ones.

    Args:
        whole: the model as it was read.
        base_dir: folder of its external weights.
        data: feeds; None for none.
        input_shapes: input -> sizes to take for the free ones where there is no data.

    Raises:
        UsageError: a shape that no input of the model can have.
        DataError: the data holds no feed, or one that does not fit.
    """
    proto = inline_layer_functions(whole, base_dir)
    samples = tuple(first_feeds(proto, base_dir, data, KEPT_SAMPLES))
    feed = samples[0] if samples else sample_feed(proto, base_dir, input_shapes or {})
    sizes = free_sizes(proto, feed)
    is_guessed = not samples and not sizes.keys() <= (input_shapes or {}).keys()
    return PruneSource(proto, base_dir, samples, feed, find_shapes(proto, base_dir, feed), sizes, is_guessed)
