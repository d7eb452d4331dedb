"""Set the weights to zero that masks do not keep."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from amct_onnx.graph.edit import replace_input
from amct_onnx.graph.model import Model, constant_array
from amct_onnx.graph.weights import Array, DerivedValues
from amct_onnx.passes.base import PassResult
from amct_onnx.passes.sparsity.candidates import SparseLayer

Mask = NDArray[np.bool_]


@dataclass(frozen=True)
class MaskWeights:
    """The weights that a mask does not keep become zero; a weight that layers share stays one.

    Attributes:
        layers: the layers.
        masks: layer -> mask in the shape of its weight, True where it stays.
    """

    layers: Sequence[SparseLayer]
    masks: Mapping[str, Mask]

    def run(self, model: Model) -> PassResult:
        """Rewrite the weights."""
        changed: list[str] = []
        by_weight: dict[int, list[SparseLayer]] = {}
        for layer in self.layers:
            if layer.name in self.masks:
                by_weight.setdefault(id(layer.weight), []).append(layer)
        for shared in by_weight.values():
            set_weight(model, shared, _masked(shared[0], self.masks[shared[0].name]))
            changed += [layer.name for layer in shared]
        return PassResult(tuple(changed))


def _masked(layer: SparseLayer, mask: Mask) -> DerivedValues:
    def values() -> Array:
        own = constant_array(layer.weight)
        return np.asarray(np.where(mask, own, np.zeros((), own.dtype)))

    return DerivedValues(list(layer.axis.shape), np.dtype(layer.weight.dtype), values)


def set_weight(model: Model, layers: Sequence[SparseLayer], values: Array | DerivedValues) -> None:
    """Give layers that share a weight other values of it.

    Args:
        model: the model.
        layers: all of its readers.
        values: in the shape of the weight.
    """
    first = layers[0]
    old = first.node.inputs[first.index]
    new = model.rewrite_constant(old, values, readers=len(layers))
    for layer in layers:
        replace_input(layer.node, layer.index, new)
