"""What the model's results lose when one group is pruned, measured."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from onnx import ModelProto, NodeProto

from amct_onnx.analyse.feeds import Feed
from amct_onnx.analyse.fitting.moments import LARGEST, Moments
from amct_onnx.analyse.fitting.refit import fit_layer, layer_weight
from amct_onnx.analyse.fitting.shared import together
from amct_onnx.analyse.fitting.views import LayerView, layer_view
from amct_onnx.analyse.resume import Resumed, alive_at, feed_key
from amct_onnx.graph import BuiltModel, build
from amct_onnx.graph.protos import node_bodies
from amct_onnx.graph.weights import Array
from amct_onnx.passes.pruning.labels import LabelArray
from amct_onnx.passes.pruning.remove import RemoveChannels
from amct_onnx.passes.pruning.walk import Shapes
from amct_onnx.rewrite.pruning import kept_results, lost_inputs, open_prunable
from amct_onnx.runtime import fetch, open_session, tensor_outputs


class Sensitivity:
    """Prunes one group at a time and compares results with the float model's."""

    def __init__(self, proto: ModelProto, base_dir: Path | None, shapes: Shapes, feeds: Sequence[Feed]) -> None:
        """Run the float model.

        Args:
            proto: the float model.
            base_dir: folder of its external weights.
            shapes: sizes of its tensors.
            feeds: the feeds to compare on.
        """
        self._open = partial(open_prunable, proto, base_dir, shapes)
        self._feeds = [(feed_key(feed), feed) for feed in feeds]
        session = open_session(proto, base_dir=base_dir, lean=True)
        self._names = tensor_outputs(session)
        self._wanted = [[array.copy() for array in fetch(session, self._names, feed)] for feed in feeds]
        self._float_model = build(self._open().model)
        self._float_run = Resumed()

    def of(self, units: LabelArray, moments: Mapping[str, Sequence[Moments]]) -> float:
        """Squared error of the results over their variance when these units go and their readers are fitted.

        Only what lies behind the first node that loses something is run.

        Args:
            units: what goes.
            moments: of what layers read and give in the float model.
        """
        prunable = self._open()
        lost = moments.keys() & set(lost_inputs(prunable, units))
        results = kept_results(prunable, units)
        kept = {
            name: ~np.isin(prunable.flow.labels.find(reader.labels), prunable.flow.labels.find(units))
            for reader in prunable.flow.readers
            if (name := str(reader.node.name)) in lost
        }
        changed = RemoveChannels(prunable.flow, units).run(prunable.model).changed
        for node, *others in together(node for node in prunable.model.graph.nodes if node.name in kept):
            name = str(node.name)
            parts = _restricted(layer_view(node), moments[name], kept[name], results[name])
            fit_layer(prunable.model, node, parts, layer_weight(node), others=others)
        return relative_error(self._wanted, self._results(build(prunable.model), changed))

    def _results(self, pruned: BuiltModel, changed: Collection[str]) -> list[list[Array]]:
        """Results of a pruned model, for each feed."""
        self._float_run.begin(self._float_model, None, (), _alive_before(self._float_model, changed))
        for key, feed in self._feeds:
            self._float_run.run(feed, key)
        run = Resumed(self._float_run.kept)
        run.begin(pruned, None, self._names)
        shown = [run.run(feed, key) for key, feed in self._feeds]
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


def _restricted(
    view: LayerView, moments: Sequence[Moments], channels: NDArray[np.bool_], results: NDArray[np.bool_]
) -> list[Moments]:
    """Moments of the columns and results that stay."""
    parts: list[Moments] = []
    for part, mask, own in zip(moments, view.of_inputs(channels), view.of_results(results), strict=True):
        columns = np.repeat(mask, len(part.x) // mask.size)
        parts.append(part.restricted(columns, own))
    return parts


def relative_error(wanted: Sequence[Sequence[Array]], got: Sequence[Sequence[Array]]) -> float:
    """Squared error over variance, of all float results together; values that are not finite are left out."""
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
    return noise / signal if signal > 0 else 0.0
