"""Channels that are constant: what they add to the results of their readers goes into these readers' biases.

A filter of zeros makes a channel that holds one number, its shift, wherever nothing but its own channel is looked at on
the way. Taking it out changes nothing then, if that number times its weights stays in the reader's bias. Where a
convolution pads its input, the border does not see the number, so it cannot be moved exactly and is not.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from onnx import ModelProto

from amct_onnx.analyse.feeds import Feed
from amct_onnx.analyse.fitting.refit import layer_weight
from amct_onnx.analyse.fitting.views import has_view, layer_view
from amct_onnx.analyse.pruning.importance import filter_rows
from amct_onnx.analyse.resume import Resumed
from amct_onnx.analyse.walk import walk_together
from amct_onnx.graph.parts import Node
from amct_onnx.graph.weights import Array
from amct_onnx.passes.pruning.labels import LabelArray
from amct_onnx.passes.pruning.walk import Flow, Reader
from amct_onnx.rewrite.pruning import Prunable

Shifts = dict[str, NDArray[np.float64]]


def constant_shifts(
    prunable: Prunable, units: LabelArray, proto: ModelProto, base_dir: Path | None, feeds: Sequence[Feed]
) -> Shifts:
    """What channels that go add to the results of the layers that read them: layer -> float64 [results].

    Args:
        prunable: the model, not pruned yet.
        units: the units that go.
        proto: the float model.
        base_dir: folder of its external weights.
        feeds: any feeds; they show what a constant channel holds when it is read.
    """
    flow = prunable.flow
    dead = _without_weights(flow, units)
    outside = {id(node) for node in prunable.model.graph.nodes}
    readers = [reader for reader in flow.readers if id(reader.node) in outside and has_view(reader.node)]
    readers = [reader for reader in readers if not _has_border(reader.node)]
    readers = [reader for reader in readers if np.isin(flow.labels.find(reader.labels), dead).any()]
    if not readers:
        return {}
    seen = _extremes(readers, proto, base_dir, feeds)
    shifts: Shifts = {}
    for reader in readers:
        low, high = seen[str(reader.node.name)]
        is_constant = np.isin(flow.labels.find(reader.labels), dead) & (low == high) & np.isfinite(low)
        shift = _shift(reader, np.where(is_constant, low, 0.0))
        if shift.any():
            shifts[str(reader.node.name)] = shift
    return shifts


def _without_weights(flow: Flow, units: LabelArray) -> LabelArray:
    """Those of the units whose filters are zero in every layer that makes them."""
    gone = np.unique(flow.labels.find(units))
    for producer in flow.producers:
        roots = flow.labels.find(producer.labels)
        if np.isin(roots, gone).any():
            alive = filter_rows(producer.node).any(axis=1)
            gone = np.setdiff1d(gone, roots[alive])
    return gone


def _has_border(node: Node) -> bool:
    """Whether a constant adds other numbers to results at the border, or to those of another phase."""
    has_pads = any(node.attrs.get("pads") or ()) or node.attrs.get("auto_pad", "NOTSET") not in ("NOTSET", "VALID")
    return node.op == "ConvTranspose" or bool(node.op == "Conv" and has_pads)


def _extremes(
    readers: Sequence[Reader], proto: ModelProto, base_dir: Path | None, feeds: Sequence[Feed]
) -> dict[str, tuple[Array, Array]]:
    """Lowest and highest value of each input channel of each reader."""
    seen: dict[str, tuple[Array, Array]] = {}

    def take(tensors: Sequence[Mapping[str, Array]], _feed: str) -> None:
        for reader in readers:
            name, view = str(reader.node.name), layer_view(reader.node)
            array = tensors[0][view.reads[0]]
            axis = view.input_axis(array.ndim)
            others = tuple(index for index in range(array.ndim) if index != axis)
            low, high = array.min(axis=others), array.max(axis=others)
            before = seen.get(name, (low, high))
            seen[name] = np.minimum(before[0], low), np.maximum(before[1], high)

    wanted = {layer_view(reader.node).reads[0] for reader in readers}
    float_model = Resumed()
    float_model.begin(proto, base_dir, wanted)
    walk_together([float_model], list(feeds), take)
    return seen


def _shift(reader: Reader, constants: Array) -> NDArray[np.float64]:
    """Constants times the weights that the layer has for them."""
    view = layer_view(reader.node)
    weight = layer_weight(reader.node)
    of_columns = np.repeat(view.of_inputs(constants.astype(np.float64)), view.places, axis=1)
    return np.asarray(view.factor * np.einsum("prc,pc->pr", weight, of_columns).reshape(-1))
