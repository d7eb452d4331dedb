"""Which units of a group go first, the way that is asked for."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from onnx import ModelProto

from amct_onnx.analyse.feeds import Feed
from amct_onnx.analyse.pruning.channel_sensitivity import ChannelGroup, ChannelSensitivity, checked_losses
from amct_onnx.analyse.pruning.elimination import Elimination, ReaderView, eliminate, eliminate_in_order
from amct_onnx.analyse.pruning.importance import (
    Scores,
    layer_norms,
    layer_scales,
    removal_order,
    unit_scores,
    units_of,
)
from amct_onnx.analyse.pruning.options import Importance
from amct_onnx.analyse.pruning.reader_views import GroupMoments, group_views
from amct_onnx.analyse.pruning.scores import energy, taylor
from amct_onnx.findings import by_reason
from amct_onnx.graph.op_table import spec_of
from amct_onnx.graph.parts import Node
from amct_onnx.passes.pruning.groups import Group
from amct_onnx.rewrite import prepare
from amct_onnx.rewrite.pruning import Prunable


class Ranking:
    """Ranks the units of one model's groups."""

    def __init__(
        self,
        prunable: Prunable,
        proto: ModelProto,
        base_dir: Path | None,
        importance: Importance | ChannelSensitivity,
        *,
        moments: GroupMoments | None = None,
        feeds: Sequence[Feed] = (),
    ) -> None:
        """Take what ranking looks at.

        Args:
            prunable: the model, followed.
            proto, base_dir: its source.
            importance: how units are ranked.
            moments: of what layers read and give; where a group has none, weights rank it.
            feeds: what a user's own measure is given.
        """
        self._flow, self._groups, self._source = prunable.flow, prunable.groups, (proto, base_dir)
        self._importance, self._moments, self._feeds = importance, moments or {}, feeds

    def order(self, group: Group, count: int) -> NDArray[np.int64]:
        """Indexes of the units that go when `count` of every block do, in the order in which they go."""
        views = self._views(group)
        if views and self._way(group) is Importance.RECONSTRUCTION:
            return eliminate(group, views, count).order
        return removal_order(group, self._scores(group, views), count)

    def losses(self, group: Group, count: int) -> Elimination | None:
        """The same with what is lost on the way; None where nothing tells."""
        views = self._views(group)
        if isinstance(self._importance, ChannelSensitivity) and group.readers:
            scores = self._scores(group, views)
            order = removal_order(group, scores, count)
            return Elimination(order, np.cumsum(scores[order]))
        if not views:
            return None
        if self._way(group) is Importance.RECONSTRUCTION:
            return eliminate(group, views, count)
        return eliminate_in_order(removal_order(group, self._scores(group, views), count), views)

    def note(self) -> str:
        """Which layers are ranked otherwise than was asked for; empty where none is."""
        if self._importance is not Importance.BN_SCALE:
            return ""
        rule = "no BatchNormalization alone reads their channels, so these are ranked by the norm of their weights (l2)"
        free = [(group, layer_scales(self._flow, group)) for group in self._groups if group.is_free.any()]
        names = [str(one.node.name) for group, scales in free for one in group.producers if one.node.name not in scales]
        return by_reason((name, rule) for name in names)

    def _scores(self, group: Group, views: Sequence[ReaderView]) -> Scores:
        """One score per unit; the lowest go."""
        if isinstance(self._importance, ChannelSensitivity):
            layers = {str(one.node.name): units_of(self._flow, group, one) for one in group.producers}
            return checked_losses(self._importance, ChannelGroup(layers, group.units.size), self._feeds)
        way = self._way(group)
        if views and way in (Importance.ENERGY, Importance.TAYLOR):
            return energy(views) if way is Importance.ENERGY else taylor(views)
        scores = layer_norms(group, self._fused)
        if self._importance is Importance.BN_SCALE:
            scores |= layer_scales(self._flow, group)
        return unit_scores(self._flow, group, scores)

    def _way(self, group: Group) -> Importance | ChannelSensitivity:
        """How a group is ranked: gates are not fitted again, so what they lose is what they were fed."""
        has_gates = bool(group.recurrences) or any(spec_of(reader.node).gates for reader in group.readers)
        return Importance.ENERGY if has_gates and self._importance is Importance.RECONSTRUCTION else self._importance

    def _views(self, group: Group) -> list[ReaderView]:
        return group_views(self._flow, group, self._moments)

    @cached_property
    def _fused(self) -> dict[str, Node]:
        """The nodes of the model with what follows a layer folded into it."""
        return {str(node.name): node for node in prepare(*self._source).model.nodes()}
