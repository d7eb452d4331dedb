"""What the model's results lose when one group is pruned, measured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from onnx import ModelProto

from amct_onnx.analyse.feeds import Feed
from amct_onnx.analyse.fitting.moments import LARGEST, RIDGE, Moments
from amct_onnx.analyse.fitting.refit import fit_layer
from amct_onnx.analyse.fitting.rows import LayerView
from amct_onnx.graph import build, constant_array
from amct_onnx.graph.op_table import known_constant
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
        self._proto, self._base_dir, self._shapes, self._feeds = proto, base_dir, shapes, feeds
        session = open_session(proto, base_dir=base_dir)
        self._names = tensor_outputs(session)
        self._wanted = [[array.copy() for array in fetch(session, self._names, feed)] for feed in feeds]

    def of(self, units: LabelArray, moments: Mapping[str, Sequence[Moments]]) -> float:
        """Squared error of the results over their variance when these units go and their readers are fitted.

        Args:
            units: what goes.
            moments: of what layers read and give in the float model.
        """
        prunable = open_prunable(self._proto, self._base_dir, self._shapes)
        readers = {
            str(reader.node.name): (reader.node, prunable.flow.labels.find(reader.labels))
            for reader in prunable.flow.readers
            if str(reader.node.name) in set(lost_inputs(prunable, units)) & moments.keys()
        }
        results = kept_results(prunable, units)
        gone = prunable.flow.labels.find(units)
        RemoveChannels(prunable.flow, units).run(prunable.model)
        for name, (node, labels) in readers.items():
            view = LayerView(node)
            values = constant_array(known_constant(node.inputs[1]))
            parts = _restricted(view, moments[name], ~np.isin(labels, gone), results[name])
            weight = view.weight(values).astype(np.float64)
            fit_layer(prunable.model, node, parts, weight, RIDGE)
        session = open_session(build(prunable.model))
        got = [fetch(session, self._names, feed) for feed in self._feeds]
        return relative_error(self._wanted, got)


def _restricted(
    view: LayerView, moments: Sequence[Moments], channels: NDArray[np.bool_], results: NDArray[np.bool_]
) -> list[Moments]:
    """Moments of the columns and results that stay."""
    per_group = channels.reshape(view.groups, -1)
    kept_results_ = results.reshape(view.groups, -1)
    parts: list[Moments] = []
    for part, mask, own in zip(moments, per_group, kept_results_, strict=True):
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
