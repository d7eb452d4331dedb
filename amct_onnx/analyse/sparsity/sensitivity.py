"""What the model's results lose when one layer is thinned out, measured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

from onnx import ModelProto

from amct_onnx.analyse.feeds import Feed
from amct_onnx.analyse.fitting.data import FittingData
from amct_onnx.analyse.fitting.evidence import Evidence
from amct_onnx.analyse.fitting.result_loss import ResultLoss
from amct_onnx.analyse.fitting.view_moments import ViewMoments
from amct_onnx.analyse.fitting.views import LayerView, layer_view
from amct_onnx.analyse.sparsity.compensate import compensate_alone, why_not_compensated
from amct_onnx.analyse.sparsity.options import Selection
from amct_onnx.graph import build
from amct_onnx.passes.sparsity.candidates import SparseLayer
from amct_onnx.passes.sparsity.mask_weights import MaskWeights
from amct_onnx.rewrite.sparsity import Sparsifiable, magnitude_masks, open_sparsifiable


class SparseSensitivity:
    """Thins out one layer at a time, with all that share its weight, and compares results with the float model's."""

    def __init__(
        self,
        proto: ModelProto,
        base_dir: Path | None,
        left: Mapping[str, str],
        selection: Selection,
        given: FittingData,
        feeds: Sequence[Feed],
    ) -> None:
        """Run the float model.

        Args:
            proto: the float model.
            base_dir: folder of its external weights.
            left: layers that stay as they are -> why.
            selection: which weights stay; of layers that cannot be compensated the largest.
            given: the data that layers are fitted to; walked when the first of them are.
            feeds: the feeds to compare on.
        """
        self._open = partial(open_sparsifiable, proto, base_dir, left)
        opened = self._open()
        views = _views(opened) if selection is Selection.COMPENSATED else []
        self._moments = ViewMoments(views, proto, base_dir, given)
        self._loss = ResultLoss(proto, base_dir, build(opened.model), feeds, progress=given.progress)

    @property
    def signal(self) -> float:
        """Variance of the results times their number; 0 where they tell nothing."""
        return self._loss.signal

    @property
    def evidence(self) -> Mapping[str, Evidence]:
        """What the layers that were fitted were fed."""
        return self._moments.evidence

    def of(self, name: str) -> float:
        """Squared error of the results over their variance when this layer alone is thinned out.

        Args:
            name: a layer that can be; those that share its weight go with it.
        """
        opened = self._open()
        alike = [opened.layers[other] for other in opened.layers[name].shares]
        if not self._is_compensated(opened, alike):
            MaskWeights(alike, magnitude_masks(alike)).run(opened.model)
        return self._loss.of(build(opened.model), [layer.name for layer in alike])

    def _is_compensated(self, opened: Sparsifiable, alike: Sequence[SparseLayer]) -> bool:
        seen = self._moments.get(alike[0].name)
        return seen is not None and compensate_alone(opened.model, alike, seen)


def _views(opened: Sparsifiable) -> list[list[LayerView]]:
    """Views of the layers that can be compensated, those that share a weight together."""
    layers = opened.layers
    seen = {id(node) for node in opened.model.graph.nodes}
    return [
        [layer_view(layers[other].node) for other in layer.shares]
        for name, layer in layers.items()
        if layer.shares[0] == name and not why_not_compensated(layer, layers, seen)
    ]
