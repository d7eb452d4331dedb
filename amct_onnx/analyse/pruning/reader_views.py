"""What the layers that read a group's channels are fed, from one walk over the data or a few."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray
from onnx import ModelProto

from amct_onnx.analyse.fitting.biases import takes_bias
from amct_onnx.analyse.fitting.data import FittingData
from amct_onnx.analyse.fitting.moments import RIDGE, Moments
from amct_onnx.analyse.fitting.shared import sharing_key
from amct_onnx.analyse.fitting.view_moments import ViewMoments
from amct_onnx.analyse.fitting.views import LayerView, has_view, layer_view
from amct_onnx.analyse.pruning.elimination import ReaderView
from amct_onnx.analyse.pruning.gates import GateView, gate_view
from amct_onnx.graph import constant_array
from amct_onnx.graph.op_table import known_constant
from amct_onnx.passes.pruning.groups import Group
from amct_onnx.passes.pruning.labels import LabelArray
from amct_onnx.passes.pruning.walk import Flow, Reader

MOST_COLUMNS = 4608
"""Wider layers are not looked at: their covariance alone would take over 170 MB."""
_FLOOR = 1.0
"""Share of the mean variance below which no channel counts when channels are ranked: MobileNetV2, fitted on 110 crops
with 20 % of its hidden channels gone, agrees with float on 62 % of other pictures without it, on 75 % with it."""

View: TypeAlias = LayerView | GateView

GroupMoments = Mapping[str, Sequence[Moments]]
"""Key of a view -> moments of what is read and given, one entry per group of the layer."""


class ReaderMoments(ViewMoments):
    """Moments of what the layers on the way of channels read in the float model."""

    def __init__(self, readers: Iterable[Reader], proto: ModelProto, base_dir: Path | None, given: FittingData) -> None:
        """Plan the walks; none is done yet.

        Args:
            readers: nodes on the way of channels, in the order in which they will be asked for; those that are no
                layers, and very wide ones, are left out.
            proto: the float model.
            base_dir: folder of its external weights.
            given: the data; walked as often as memory asks for.
        """
        views = {view.key: view for reader in readers if (view := _view(reader)) and view.columns <= MOST_COLUMNS}
        super().__init__(_alike(views.values()), proto, base_dir, given)


def _view(reader: Reader) -> View | None:
    return layer_view(reader.node) if has_view(reader.node) else gate_view(reader)


def _alike(views: Iterable[View]) -> list[tuple[View, ...]]:
    """The views, those of layers that are one together."""
    found: dict[Hashable, list[View]] = {}
    for view in views:
        found.setdefault(_sharing(view), []).append(view)
    return [tuple(alike) for alike in found.values()]


def _sharing(view: View) -> Hashable:
    return sharing_key(view.node) if isinstance(view, LayerView) else view.key


def group_views(flow: Flow, group: Group, moments: Mapping[str, Sequence[Moments]]) -> list[ReaderView]:
    """What is known of a group's readers, those that are one once, and of recurrent layers that read what they made."""
    if not group.readers:
        return []
    readers = [(view, reader) for reader in (*group.readers, *group.recurrences) if (view := _view(reader))]
    labels = {view.key: flow.labels.find(reader.labels) for view, reader in readers}
    found: list[ReaderView] = []
    for view, *others in _alike(view for view, _ in readers):
        seen = moments.get(view.key)
        if seen is None or any(part.rows < 2 for part in seen):
            continue
        weight = view.weight(constant_array(known_constant(view.node.inputs[view.index])))
        has_bias = isinstance(view, LayerView) and takes_bias(view.node, view.channels)
        channels = view.of_inputs(labels[view.key])
        for index, part in enumerate(seen if has_bias else [whole.about_zero for whole in seen]):
            columns = _unit_columns(group, channels[index], weight.shape[2])
            own = weight[index].astype(np.float64)
            penalty = part.penalty(RIDGE, floor=_FLOOR)
            found.append(ReaderView(own, part.covariance, penalty, columns, readers=1 + len(others)))
    return found


def _unit_columns(group: Group, labels: LabelArray, columns: int) -> list[NDArray[np.int64]]:
    """Unit -> the columns that hold its channels, of a layer that has so many for all channels of one group."""
    places = columns // labels.size
    found: list[NDArray[np.int64]] = [np.zeros(0, np.int64)] * group.units.size
    order = np.argsort(group.units)
    at = np.searchsorted(group.units, labels, sorter=order).clip(max=group.units.size - 1)
    is_own = group.units[order[at]] == labels
    for channel in np.flatnonzero(is_own):
        unit = int(order[at[channel]])
        own = channel * places + np.arange(places)
        found[unit] = np.concatenate([found[unit], own])
    return found
