"""Scales of recurrent layers: chosen from the weights, from what comes in, and from the hidden states seen."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from amct_onnx.analyse.algorithms import Bounds, choose_activation, choose_weight
from amct_onnx.analyse.algorithms.uniform import half_precision
from amct_onnx.analyse.algorithms.weight import arq, fit_bias
from amct_onnx.analyse.obstacles import Obstacle, accumulator_obstacle, data_obstacle, scale_obstacle, weight_obstacle
from amct_onnx.analyse.options import PlanOptions
from amct_onnx.analyse.statistics import TensorStatistics
from amct_onnx.graph import constant_array
from amct_onnx.graph.op_table import resolve_constant
from amct_onnx.graph.parts import Tensor
from amct_onnx.graph.weights import Array
from amct_onnx.passes.qdq_placement import output_bounds
from amct_onnx.passes.recurrent import RecurrentLayer, ascend_obstacle, bias_halves, weight_rows
from amct_onnx.record import LayerRecord

Scales = NDArray[np.float32]


def recurrent_obstacle(layer: RecurrentLayer, options: PlanOptions) -> Obstacle | None:
    """Why a layer stays float, as far as its constants and the output forms decide it."""
    limits = ascend_obstacle(layer) if options.for_ascend else None
    if limits is not None:
        return Obstacle(*limits)
    bias = None if layer.bias is None else constant_array(layer.bias)
    obstacle = weight_obstacle(constant_array(layer.weight), bias)
    if obstacle is not None:
        return obstacle
    found = weight_obstacle(constant_array(layer.recurrence), None)
    return found and Obstacle(*(text.replace("weight", "recurrence weight") for text in found))


def computed_states(layer: RecurrentLayer) -> list[Tensor]:
    """The hidden states that calibration has to show; constant ones are known."""
    return [tensor for tensor in layer.states if resolve_constant(tensor) is None]


def joined_states(layer: RecurrentLayer, seen: Sequence[TensorStatistics], feeds: int) -> TensorStatistics:
    """Statistics of all hidden states of a layer, from those that calibration saw; constant ones count in each feed."""
    merged = TensorStatistics(keep_values=all(part.keep_values for part in seen))
    for part in seen:
        merged.merge(part)
    constants = [constant for constant in map(resolve_constant, layer.states) if constant is not None]
    for constant in constants:
        values = constant_array(constant)
        for _ in range(feeds):
            merged.update(values)
    return merged


def weight_entry(layer: RecurrentLayer, options: PlanOptions) -> LayerRecord:
    """The part of an entry that follows from the weights alone."""
    scale_w, scale_r = (_chosen(layer, constant_array(of), options) for of in (layer.weight, layer.recurrence))
    return LayerRecord(
        scale_w=tuple(scale_w.tolist()),
        offset_w=(0,) * scale_w.size,
        scale_r=tuple(scale_r.tolist()),
        offset_r=(0,) * scale_r.size,
        wts_type=f"INT{options.of(layer.name).weight.bits}",
    )


def _chosen(layer: RecurrentLayer, weight: Array, options: PlanOptions) -> Scales:
    """Scales of one weight: one per row, or one per gate where the config wants few."""
    wanted = options.of(layer.name).weight
    is_per_row = layer.spec.per_channel if wanted.per_channel is None else wanted.per_channel
    rows = weight_rows(weight, layer.rows if is_per_row else layer.gates)
    reduced = options.reduce_range and wanted.bits == 8
    return arq(rows, 0, bits=7) if reduced else choose_weight(wanted, rows, 0)


def input_scale(
    layer: RecurrentLayer, seen: TensorStatistics, options: PlanOptions, *, is_float: bool = True
) -> tuple[float, int] | Obstacle:
    """Scale and offset of the data input."""
    obstacle = data_obstacle(seen, is_float=is_float)
    if obstacle is not None:
        return obstacle
    bounds = Bounds(*output_bounds(layer.activation))
    scale, offset = choose_activation(options.of(layer.name).activation, seen.distribution(), bounds=bounds)
    return _usable(scale, offset, seen, options)


def state_scale(layer: RecurrentLayer, seen: TensorStatistics, options: PlanOptions) -> tuple[float, int] | Obstacle:
    """Scale and offset of the hidden state."""
    obstacle = data_obstacle(seen, is_float=True)
    if obstacle is not None:
        return Obstacle(obstacle.reason.replace("its input", "its hidden state"), obstacle.remedy)
    scale, offset = choose_activation(options.of(layer.name).activation, seen.distribution(), bounds=Bounds())
    return _usable(scale, offset, seen, options)


def _usable(scale: float, offset: int, seen: TensorStatistics, options: PlanOptions) -> tuple[float, int] | Obstacle:
    scale = half_precision(scale) if options.force_fp16 else scale
    return scale_obstacle(scale, seen) or (scale, offset)


def fitted_entry(layer: RecurrentLayer, entry: LayerRecord) -> LayerRecord:
    """An entry with weight scales high enough for both halves of the bias and for float32, if it has all scales."""
    sizes = {1, layer.gates, layer.rows}
    if entry.scale_d is None or entry.scale_h is None or not {len(entry.scale_w), len(entry.scale_r)} <= sizes:
        return entry
    first, second = (None, None) if layer.bias is None else bias_halves(constant_array(layer.bias))
    scale_w = _fitted(constant_array(layer.weight), first, entry.scale_w, entry.scale_d)
    scale_r = _fitted(constant_array(layer.recurrence), second, entry.scale_r, entry.scale_h)
    return replace(entry, scale_w=tuple(scale_w.tolist()), scale_r=tuple(scale_r.tolist()))


def _fitted(weight: Array, bias: Array | None, scales: Sequence[float], data_scale: float) -> Scales:
    scale = np.asarray(scales, np.float32)
    rows = weight_rows(weight, scale.size)
    if bias is not None:
        # One gate's scale serves the largest bias of its rows.
        bias = np.abs(bias.reshape(scale.size, -1)).max(axis=1)
    least = np.nextafter(np.float32(np.finfo(np.float32).tiny / min(data_scale, 1.0)), np.float32(np.inf))
    return np.asarray(np.maximum(fit_bias(scale, bias, data_scale, ~np.any(rows, axis=1)), least), np.float32)


def complete_entry(
    layer: RecurrentLayer, options: PlanOptions, data: tuple[float, int], state: tuple[float, int]
) -> LayerRecord | Obstacle:
    """The whole entry of a layer, from scale and offset of its input and of its hidden state."""
    activation = options.of(layer.name).activation
    entry = replace(
        weight_entry(layer, options),
        scale_d=data[0],
        offset_d=data[1],
        scale_h=state[0],
        offset_h=state[1],
        act_type=f"INT{activation.bits}",
    )
    entry = fitted_entry(layer, entry)
    pairs = ((entry.scale_w, data[0]), (entry.scale_r, state[0]))
    found = (accumulator_obstacle(np.asarray(scales, np.float32), scale) for scales, scale in pairs)
    return next((obstacle for obstacle in found if obstacle is not None), entry)
