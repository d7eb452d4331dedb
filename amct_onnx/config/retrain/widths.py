"""Widths that layers can have, and what they get where a block asks for others."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from amct_onnx.config.facts import ConfigurableLayer, ModelFacts
from amct_onnx.config.limits import Limit, limits
from amct_onnx.config.misfits import Misfits
from amct_onnx.config.request import ACTIVATION_BITS, WEIGHT_BITS, Setting, Wish
from amct_onnx.config.retrain.options import DataQuant, WeightQuant
from amct_onnx.config.retrain.request import Asked, Wishes
from amct_onnx.findings import Finding


class Widths:
    """Fits widths to layers; what does not fit is collected, as an error unless the global blocks ask for it.

    Args:
        facts: what the layers can have; None where that is not asked.
        of_all: the global blocks.
    """

    def __init__(self, facts: ModelFacts | None, of_all: Wishes) -> None:
        self._layers = {} if facts is None else facts.layers
        self._of_all = of_all
        self._misfits = Misfits()
        self._pairs: dict[tuple[int | None, int | None], list[str]] = {}

    def fit(self, name: str, data: Asked[DataQuant], weight: Asked[WeightQuant]) -> tuple[DataQuant, WeightQuant]:
        """The choices for a layer, 8 bits in place of what it cannot have."""
        of_data, of_weight = data.options, weight.options
        layer = self._layers.get(name)
        if layer is not None and self._is_limited(layer, data, ACTIVATION_BITS):
            of_data = replace(of_data, bits=8)
        if layer is not None and self._is_limited(layer, weight, WEIGHT_BITS):
            of_weight = replace(of_weight, bits=8)
        if (of_data.bits, of_weight.bits) == (16, 4):
            self._pairs.setdefault((data.line, weight.line), []).append(name)
        return of_data, of_weight

    def findings(self) -> Iterator[Finding]:
        """Yield what did not fit."""
        yield from self._misfits.findings()
        for (_, line), names in self._pairs.items():
            message = "INT16 activations go with INT8 weights, not with INT4; correct one dst_type"
            yield Finding(line, names[0], message)

    def _is_limited(self, layer: ConfigurableLayer, asked: Asked[DataQuant] | Asked[WeightQuant], name: str) -> bool:
        limit = width_limit(layer, name, asked.options.bits, asked.line)
        if limit is None:
            return False
        is_strict = asked not in (self._of_all.data, self._of_all.weight)
        # Of a block for everything, what concerns weights is not meant for a layer that has none.
        if is_strict or layer.has_weight or name == ACTIVATION_BITS:
            self._misfits.add(Wish(where=asked.where, line=asked.line, strict=is_strict), limit, layer)
        return True


def width_limit(layer: ConfigurableLayer, name: str, bits: int, line: int | None = None) -> Limit | None:
    """Why a layer cannot have a width; None where it can.

    Args:
        layer: the layer.
        name: the setting, of activations or of weights.
        bits: the width.
        line: where it is asked for.
    """
    setting = Setting(bits, line, "dst_type", f"dst_type INT{bits}")
    return next(limits(layer, Wish(where="", line=line, settings={name: setting})), None)
