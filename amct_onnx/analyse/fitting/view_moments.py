"""What layers read and give in the float model, from one walk over the data or a few, of which few are held."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Protocol

import numpy as np
from onnx import ModelProto

from amct_onnx.analyse.fitting.data import FittingData
from amct_onnx.analyse.fitting.evidence import Evidence, evidence
from amct_onnx.analyse.fitting.moments import Moments
from amct_onnx.analyse.fitting.shared import View, rows_of_all
from amct_onnx.analyse.resume import Resumed
from amct_onnx.analyse.walk import walk_together
from amct_onnx.graph.weights import Array

_WALK_BYTES = 2**29
"""Covariances that one walk gathers; more take another walk."""
_MOST_HELD = 2
"""Walks whose covariances are kept; those of others are gathered again when they are asked for."""


class SizedView(View, Protocol):
    """A view that knows its name, and how large its covariances are."""

    @property
    def key(self) -> str:
        """Its name among others."""

    @property
    def reads(self) -> tuple[str, ...]:
        """The tensors that its rows come from."""

    @property
    def gives(self) -> str:
        """The tensor of its results."""

    @property
    def parts(self) -> int:
        """Parts of the layer."""

    @property
    def columns(self) -> int:
        """Columns of one part."""


class ViewMoments(Mapping[str, Sequence[Moments]]):
    """Moments of what layers read and give in the float model, by the key of their view, one for each part.

    They are gathered when they are asked for.

    Attributes:
        evidence: what the layers that were asked for were fed.
    """

    def __init__(
        self, views: Sequence[Sequence[SizedView]], proto: ModelProto, base_dir: Path | None, given: FittingData
    ) -> None:
        """Plan the walks; none is done yet.

        Args:
            views: those of layers that are one together, in the order in which they will be asked for.
            proto: the float model.
            base_dir: folder of its external weights.
            given: the data; walked as often as memory asks for.
        """
        self._source = proto, base_dir, given
        self._first = {view.key: alike[0].key for alike in views for view in alike}
        self._batches = _batches(views)
        self._places = {alike[0].key: place for place, batch in enumerate(self._batches) for alike in batch}
        self._held: dict[int, dict[str, list[Moments]]] = {}
        self.evidence: dict[str, Evidence] = {}

    def __getitem__(self, key: str) -> Sequence[Moments]:
        first = self._first[key]
        place = self._places[first]
        if place not in self._held:
            while len(self._held) >= _MOST_HELD:
                del self._held[next(iter(self._held))]
            found = _watched(self._batches[place], *self._source)
            self.evidence |= {key: evidence(found[first]) for key, first in self._first.items() if first in found}
            self._held[place] = found
        return self._held[place][first]

    def __iter__(self) -> Iterator[str]:
        return iter(self._first)

    def __len__(self) -> int:
        return len(self._first)


def _batches(views: Sequence[Sequence[SizedView]]) -> list[list[Sequence[SizedView]]]:
    batches: list[list[Sequence[SizedView]]] = []
    room = 0
    for alike in views:
        size = 8 * alike[0].parts * alike[0].columns ** 2
        if not batches or size > room:
            batches.append([])
            room = _WALK_BYTES
        batches[-1].append(alike)
        room -= size
    return batches


def _watched(
    views: Sequence[Sequence[SizedView]], proto: ModelProto, base_dir: Path | None, given: FittingData
) -> dict[str, list[Moments]]:
    seen = {alike[0].key: [Moments() for _ in range(alike[0].parts)] for alike in views}
    rng = np.random.default_rng(given.seed)

    def take(tensors: Sequence[Mapping[str, Array]], feed: str) -> None:
        for alike in views:
            rows, results = rows_of_all(alike, tensors[0], tensors[0], rng)
            for part, moments in enumerate(seen[alike[0].key]):
                moments.update(rows[:, part], results[:, part], feed)

    float_model = Resumed()
    watched = {name for alike in views for view in alike for name in (*view.reads, view.gives)}
    float_model.begin(proto, base_dir, watched)
    walk_together([float_model], given.data, take, limit=given.feeds, progress=given.progress)
    return seen
