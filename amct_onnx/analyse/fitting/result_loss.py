"""What the model's results lose when a part of the model changes, measured."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from pathlib import Path

import numpy as np
from onnx import ModelProto, NodeProto

from amct_onnx.analyse.feeds import Feed
from amct_onnx.analyse.fitting.moments import LARGEST
from amct_onnx.analyse.resume import Resumed, alive_at, feed_key
from amct_onnx.analyse.walk import Progress
from amct_onnx.graph import BuiltModel
from amct_onnx.graph.protos import node_bodies
from amct_onnx.graph.weights import Array
from amct_onnx.runtime import fetch, open_session, tensor_outputs


class ResultLoss:
    """The results of a float model, with which those of changed ones are compared.

    Attributes:
        signal: variance of the results times their number; 0 where they tell nothing.
    """

    def __init__(
        self,
        proto: ModelProto,
        base_dir: Path | None,
        float_model: BuiltModel,
        feeds: Sequence[Feed],
        *,
        progress: Progress | None = None,
    ) -> None:
        """Run the float model.

        Args:
            proto: the float model.
            base_dir: folder of its external weights.
            float_model: the same, built from the graph that is changed, so that its tensors have the names of that.
            feeds: the feeds to compare on.
            progress: wraps the iterator of feeds of every comparison.
        """
        self._feeds = [(feed_key(feed), feed) for feed in feeds]
        self._progress = progress
        session = open_session(proto, base_dir=base_dir, lean=True)
        self._names = tensor_outputs(session)
        self._wanted = [[array.copy() for array in fetch(session, self._names, feed)] for feed in feeds]
        self._float_model = float_model
        self._float_run = Resumed()
        self.signal = _error_and_signal(self._wanted, self._wanted)[1]

    def of(self, changed_model: BuiltModel, changed: Collection[str]) -> float:
        """Squared error of the results over their variance, see :func:`relative_error`.

        Only what lies behind the first changed node is run.

        Args:
            changed_model: the changed model.
            changed: names of its nodes that changed, which may be in bodies.
        """
        return relative_error(self._wanted, self._results(changed_model, changed))

    def _results(self, model: BuiltModel, changed: Collection[str]) -> list[list[Array]]:
        """Results of a changed model, for each feed."""
        self._float_run.begin(self._float_model, None, (), _alive_before(self._float_model, changed))
        for key, feed in self._feeds:
            self._float_run.run(feed, key)
        run = Resumed(self._float_run.kept)
        run.begin(model, None, self._names)
        feeds = [feed for _, feed in self._feeds]
        shown = [
            run.run(feed, key)
            for (key, _), feed in zip(self._feeds, self._progress(feeds) if self._progress else feeds, strict=True)
        ]
        return [[tensors[name] for name in self._names] for tensors in shown]


def _alive_before(built: BuiltModel, nodes: Collection[str]) -> frozenset[str]:
    """What is alive before the first of some nodes, which may be in bodies."""
    proto = built.skeleton
    numbers = (number for number, node in enumerate(proto.graph.node) if not set(nodes).isdisjoint(_names(node)))
    return alive_at(proto, next(numbers, 0))


def _names(node: NodeProto) -> Iterator[str]:
    yield node.name
    for body in node_bodies(node):
        for inner in body.node:
            yield from _names(inner)


def relative_error(wanted: Sequence[Sequence[Array]], got: Sequence[Sequence[Array]]) -> float:
    """Squared error over variance, of all float results together; values that are not finite are left out."""
    noise, signal = _error_and_signal(wanted, got)
    return noise / signal if signal > 0 else 0.0


def _error_and_signal(wanted: Sequence[Sequence[Array]], got: Sequence[Sequence[Array]]) -> tuple[float, float]:
    noise = signal = 0.0
    for first, second in zip(wanted, got, strict=True):
        for x, y in zip(first, second, strict=True):
            if x.dtype.kind != "f":
                continue
            one, other = x.astype(np.float64), y.astype(np.float64)
            finite = (np.abs(one) < LARGEST) & (np.abs(other) < LARGEST)
            one, other = one[finite], other[finite]
            noise += float(np.square(one - other).sum())
            signal += float(np.square(one - one.mean()).sum()) if one.size else 0.0
    return noise, signal
