"""Scales of the two factors of a product of two computed tensors: both symmetric, in 8 bits."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace

import numpy as np

from amct_onnx.analyse.algorithms.uniform import half_precision, signal_to_noise_db
from amct_onnx.analyse.engine import Calibration
from amct_onnx.analyse.obstacles import Obstacle, accumulator_obstacle, data_obstacle, scale_obstacle
from amct_onnx.analyse.options import PlanOptions
from amct_onnx.analyse.statistics import TensorStatistics
from amct_onnx.config import ActivationOptions
from amct_onnx.graph import Tensor
from amct_onnx.passes.locate import Layer
from amct_onnx.record import LayerRecord

MINIMUM_PAIR_DB = 15.0
"""Below this a tensor is worth more in float than an integer kernel gains; sound tensors measure 20 to 45 dB."""


@dataclass(frozen=True)
class ProductScales:
    """Chooses them.

    Attributes:
        options: the choices of the plan.
        calibration: what was seen.
        sources: tensor -> the tensor that it shares its scale with, which was watched.
        choose: scale and offset of a tensor, by name, quantized like this.
    """

    options: PlanOptions
    calibration: Calibration
    sources: Mapping[str, str]
    choose: Callable[[str, ActivationOptions], tuple[float, int]]

    def entry(self, layer: Layer, second: Tensor) -> LayerRecord | Obstacle:
        """The entry of a product, which says nothing of its second factor; or why it stays float."""
        for which, tensor in (("first", layer.activation), ("second", second)):
            obstacle = self._obstacle(layer, tensor)
            if obstacle is not None:
                return obstacle._replace(reason=f"of its {which} input: {obstacle.reason}")
        scale, factor = self._scale(layer, layer.activation), self._scale(layer, second)
        return accumulator_obstacle(np.array([factor], np.float32), scale) or LayerRecord(
            scale_d=scale, offset_d=0, scale_w=(1.0,), offset_w=(0,), act_type="INT8"
        )

    def second_entries(self, layers: Iterable[Layer]) -> dict[str, LayerRecord]:
        """Entries of the second factors of those products that are quantized, by tensor name."""
        return {
            layer.second.name: LayerRecord(scale_d=self._scale(layer, layer.second), offset_d=0, act_type="INT8")
            for layer in layers
            if layer.second is not None
        }

    def _scale(self, layer: Layer, tensor: Tensor) -> float:
        scale, _ = self.choose(tensor.name, factor_options(self.options, layer.name))
        return half_precision(scale) if self.options.force_fp16 else scale

    def _obstacle(self, layer: Layer, tensor: Tensor) -> Obstacle | None:
        source = self.sources[tensor.name]
        seen = self.calibration.statistics[source]
        obstacle = data_obstacle(seen, is_float=source not in self.calibration.not_float)
        if obstacle is not None:
            return obstacle
        scale = self._scale(layer, tensor)
        return scale_obstacle(scale, seen) or _fidelity_obstacle(seen, scale)


def factor_options(options: PlanOptions, layer: str) -> ActivationOptions:
    """How both factors of a product are quantized."""
    return replace(options.of(layer).activation, symmetric=True, bits=8)


def _fidelity_obstacle(seen: TensorStatistics, scale: float) -> Obstacle | None:
    """Whether 8 bits hold a factor worse than what the QDQ form would quantize."""
    if not seen.keep_values:
        return None
    fidelity = signal_to_noise_db(seen.distribution(), scale, 0, bits=8)
    if fidelity >= MINIMUM_PAIR_DB:
        return None
    return Obstacle(f"8 bits represent its values too badly (signal-to-noise ratio {fidelity:.0f} dB)", "none")
