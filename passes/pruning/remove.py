"""Take channels out of a graph."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from amct_onnx.graph.model import Model
from amct_onnx.passes.base import PassResult
from amct_onnx.passes.drop_dead import drop_unread
from amct_onnx.passes.pruning.adjust import Entries, Keep, Slice, Unread
from amct_onnx.passes.pruning.axes import Layout, size_of
from amct_onnx.passes.pruning.labels import LabelArray
from amct_onnx.passes.pruning.walk import Flow


@dataclass(frozen=True)
class RemoveChannels:
    """Everything that holds something for a channel loses it, and everything that counts channels counts fewer.

    Attributes:
        flow: what following the channels of this very model found.
        units: the units that go.
    """

    flow: Flow
    units: LabelArray

    def run(self, model: Model) -> PassResult:
        """Change the constants and attributes."""
        gone = np.unique(self.flow.labels.find(self.units))

        def keep(labels: LabelArray) -> NDArray[np.bool_]:
            return ~np.isin(self.flow.labels.find(labels), gone)

        changed: dict[str, None] = {}
        loose = list(self.flow.loose)
        slices: dict[tuple[object, ...], list[Slice]] = {}
        for adjustment in self.flow.adjustments:
            if not all(keep(labels).all() for labels in adjustment.concerned()):
                if isinstance(adjustment, Slice):
                    slices.setdefault(adjustment.key(keep), []).append(adjustment)
                    changed[adjustment.node.name] = None
                    continue
                if isinstance(adjustment, Entries | Unread):
                    loose.append(adjustment.node.inputs[adjustment.index])
                adjustment.apply(model, keep)
                changed[adjustment.node.name] = None
        for readers in slices.values():
            readers[0].apply_for(model, keep, readers)
        drop_unread(model, loose)
        for graph in model.graphs():
            graph.retyped |= set(self.flow.tensors)
            for tensor in (*graph.inputs, *graph.outputs):
                sizes = _changed_sizes(self.flow.layouts.get(id(tensor), ()), keep)
                if sizes:
                    graph.resized[tensor.name] = sizes
        return PassResult(tuple(changed))


def _changed_sizes(layout: Layout, keep: Keep) -> dict[int, int]:
    """Axes of which channels go -> how many positions are left."""
    left = {
        axis: math.prod(factor.size if factor.labels is None else int(keep(factor.labels).sum()) for factor in factors)
        for axis, factors in enumerate(layout)
    }
    return {axis: size for axis, size in left.items() if size != size_of(layout[axis])}
