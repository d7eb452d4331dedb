"""Whether channels go without a trace: a model that loses them must do what it does with them at zero."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from onnx import ModelProto

from amct_onnx.graph import Model, build
from amct_onnx.graph.model import constant_array
from amct_onnx.graph.op_table import known_constant
from amct_onnx.passes.pruning.adjust import GroupedWeight, Slice, change_input
from amct_onnx.passes.pruning.labels import LabelArray
from amct_onnx.rewrite.pruning import Prunable

_DIVISORS = frozenset({"Div", "Pow", "Mod"})


@dataclass(frozen=True)
class _Gone:
    """Which positions go, from their labels."""

    prunable: Prunable
    units: LabelArray

    def __call__(self, labels: LabelArray) -> NDArray[np.bool_]:
        find = self.prunable.flow.labels.find
        return np.isin(find(labels), find(self.units))


def exact_units(prunable: Prunable, units: LabelArray) -> LabelArray:
    """Those of `units` that nothing mixes; others change what stays."""
    mixed = [group.units for group in prunable.groups if group.approximate]
    found = prunable.flow.labels.find(units)
    return found[~np.isin(found, np.concatenate(mixed))] if mixed else found


def silenced(prunable: Prunable, units: LabelArray) -> ModelProto:
    """The model with everything at zero that it holds for these units; `prunable` is used up."""
    gone = _Gone(prunable, units)
    for adjustment in prunable.flow.adjustments:
        if isinstance(adjustment, Slice) and adjustment.node.op not in _DIVISORS:
            _clear(prunable.model, adjustment, gone)
        elif isinstance(adjustment, GroupedWeight):
            _clear_groups(prunable.model, adjustment, gone)
    return build(prunable.model).to_proto()


def _clear(model: Model, adjustment: Slice, gone: _Gone) -> None:
    values = np.array(constant_array(known_constant(adjustment.node.inputs[adjustment.index])))
    for axis, labels in adjustment.axes.items():
        np.moveaxis(values, axis, 0)[gone(labels)] = 0
    change_input(model, adjustment.node, adjustment.index, values)


def _clear_groups(model: Model, adjustment: GroupedWeight, gone: _Gone) -> None:
    values = np.array(constant_array(known_constant(adjustment.node.inputs[1])))
    values[gone(adjustment.rows).reshape(-1)] = 0
    parts = values.reshape(*adjustment.rows.shape, *values.shape[1:])
    for part, columns in zip(parts, gone(adjustment.columns), strict=True):
        part[:, columns] = 0
    change_input(model, adjustment.node, 1, values)
