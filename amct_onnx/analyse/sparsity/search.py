"""Which layers are thinned out when so much of the model's cost has to go: each one's loss against what it saves."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeAlias

import numpy as np

from amct_onnx.analyse.allocation import Offer, allocate_share
from amct_onnx.analyse.sparsity.savings import ZeroSavings
from amct_onnx.passes.sparsity.candidates import SparseLayer

Measure: TypeAlias = Callable[[str], float]
"""What the model's results lose when one layer is thinned out, with those that share its weight."""

_DEARER = "other layers give up more for less loss"
_UNKNOWN = "what it would save is not known, since the sizes of what it reads or gives are not"


def layers_to_leave(
    layers: Mapping[str, SparseLayer], savings: ZeroSavings, saving: float, measure: Measure
) -> dict[str, str]:
    """The layers that stay as they are when the others save a share of the multiply-adds, each with the reason.

    Args:
        layers: those that can be thinned out, by name, in graph order.
        savings: what zeros save in the model.
        saving: the share.
        measure: what is lost with one of them.

    Raises:
        OutOfReachError: so much cannot be saved.
    """
    zeros = {name: layer.zero_share for name, layer in layers.items()}
    alike = {name: layer.shares for name, layer in layers.items() if layer.shares[0] == name}
    saved = {first: sum(savings.layers[name] * zeros[name] for name in names) for first, names in alike.items()}
    offers = {
        first: Offer(np.array([measure(first)]), np.array([count])) for first, count in saved.items() if count > 0
    }

    def saved_by(steps: Mapping[str, int]) -> float:
        return savings.of({name: zeros[name] for first, step in steps.items() if step for name in alike[first]})

    steps = allocate_share(offers, saving, savings.total, saved_by, at_once=True)
    return {
        name: _DEARER if first in offers else _UNKNOWN
        for first, names in alike.items()
        if not steps.get(first)
        for name in names
    }
