"""What the model's results lose when one group is pruned, measured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from onnx import ModelProto

from amct_onnx.analyse.feeds import Feed
from amct_onnx.analyse.fitting.moments import Moments
from amct_onnx.analyse.fitting.refit import fit_layer, layer_weight
from amct_onnx.analyse.fitting.result_loss import ResultLoss
from amct_onnx.analyse.fitting.shared import together
from amct_onnx.analyse.fitting.views import LayerView, layer_view
from amct_onnx.analyse.walk import Progress
from amct_onnx.graph import build
from amct_onnx.passes.pruning.labels import LabelArray
from amct_onnx.passes.pruning.remove import RemoveChannels
from amct_onnx.passes.pruning.walk import Shapes
from amct_onnx.rewrite.pruning import kept_results, lost_inputs, open_prunable


class Sensitivity:
    """Prunes one group at a time and compares results with the float model's."""

    def __init__(
        self,
        proto: ModelProto,
        base_dir: Path | None,
        shapes: Shapes,
        feeds: Sequence[Feed],
        *,
        progress: Progress | None = None,
    ) -> None:
        """Run the float model.

        Args:
            proto: the float model.
            base_dir: folder of its external weights.
            shapes: sizes of its tensors.
            feeds: the feeds to compare on.
            progress: wraps the iterator of feeds of every comparison.
        """
        self._open = partial(open_prunable, proto, base_dir, shapes)
        self._loss = ResultLoss(proto, base_dir, build(self._open().model), feeds, progress=progress)

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
        return self._loss.of(build(prunable.model), changed)


def _restricted(
    view: LayerView, moments: Sequence[Moments], channels: NDArray[np.bool_], results: NDArray[np.bool_]
) -> list[Moments]:
    """Moments of the columns and results that stay."""
    parts: list[Moments] = []
    for part, mask, own in zip(moments, view.of_inputs(channels), view.of_results(results), strict=True):
        columns = np.repeat(mask, len(part.x) // mask.size)
        parts.append(part.restricted(columns, own))
    return parts
