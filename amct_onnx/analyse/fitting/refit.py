"""Recovery without training: layers that read pruned channels are fitted again to the float model's results.

Layers are taken in topological order, several at a time, so that each is fitted on what the pruned model, already
fitted before it, really feeds it. No labels are needed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray
from onnx import ModelProto

from amct_onnx.analyse.fitting.biases import set_bias, shift_bias, takes_bias
from amct_onnx.analyse.fitting.data import FittingData
from amct_onnx.analyse.fitting.evidence import Evidence, check_finite, evidence
from amct_onnx.analyse.fitting.moments import RIDGE, Matrix, Moments, ridge_fit
from amct_onnx.analyse.fitting.rows import LayerView, has_view
from amct_onnx.analyse.walk import walk_together
from amct_onnx.graph import Model, build, constant_array
from amct_onnx.graph.edit import replace_input
from amct_onnx.graph.op_table import known_constant
from amct_onnx.graph.parts import Node
from amct_onnx.graph.weights import Array

MOST_STAGES = 16
"""Walks over the data; layers of one walk do not see each other's fit."""


LayerFit: TypeAlias = Callable[[Model, Node, Sequence[Moments], Matrix], bool]
"""Gives a layer other weights, from what it was fed and its weight [groups, results, columns]; whether it could."""


@dataclass(frozen=True)
class RefitLayer:
    """A layer to fit.

    Attributes:
        node: the layer in the pruned model.
        results: which of its results stay, of the float model's: bool [results].
    """

    node: Node
    results: NDArray[np.bool_]


def refit(
    model: Model,
    layers: Sequence[RefitLayer],
    proto: ModelProto,
    base_dir: Path | None,
    given: FittingData,
    *,
    fit: LayerFit | None = None,
    walks: int = MOST_STAGES,
) -> dict[str, Evidence]:
    """Fit layers of a compressed model to the float model, in place.

    Args:
        model: the compressed model; its weights and biases change.
        layers: what to fit, in graph order.
        proto: the float model.
        base_dir: folder of its external weights.
        given: the data.
        fit: what becomes of a layer; by default least squares, near its own weights.
        walks: over the data at most; layers of one walk do not see each other's fit.

    Returns:
        Layer -> what it was fed, and whether it was fitted.

    Raises:
        DataError: no layer is fed anything finite.
    """
    size = -(-len(layers) // walks)
    found: dict[str, Evidence] = {}
    for begin in range(0, len(layers), max(1, size)):
        stage = layers[begin : begin + size]
        seen = _moments(model, stage, proto, base_dir, given)
        for layer in stage:
            name = str(layer.node.name)
            is_fitted = _fit(model, layer, seen[name], fit or fit_layer)
            found[name] = evidence(seen[name], is_fitted=is_fitted)
    check_finite(found)
    return found


def _moments(
    model: Model, layers: Sequence[RefitLayer], proto: ModelProto, base_dir: Path | None, given: FittingData
) -> dict[str, list[Moments]]:
    """What the layers read in the pruned model, with what they give in the float model."""
    views = {str(layer.node.name): LayerView(layer.node) for layer in layers}
    seen = {name: [Moments() for _ in range(view.groups)] for name, view in views.items()}
    rng = np.random.default_rng(given.seed)
    pruned = build(model).to_proto()
    wanted = [{_result(layer.node) for layer in layers}, {str(layer.node.inputs[0].name) for layer in layers}]

    def take(tensors: Sequence[Mapping[str, Array]], feed: str) -> None:
        for layer in layers:
            name = str(layer.node.name)
            x, y = tensors[1][str(layer.node.inputs[0].name)], tensors[0][_result(layer.node)]
            axis = 1 if layer.node.op == "Conv" else -1
            rows, results = views[name].rows(x, np.compress(layer.results, y, axis=axis), rng)
            for group, moments in enumerate(seen[name]):
                moments.update(rows[:, group], results[:, group], feed)

    walk_together(
        [(proto, base_dir, wanted[0]), (pruned, None, wanted[1])],
        given.data,
        take,
        limit=given.feeds,
        progress=given.progress,
    )
    return seen


def _result(node: Node) -> str:
    return str(node.outputs[0].name)


def _fit(model: Model, layer: RefitLayer, seen: Sequence[Moments], fit: LayerFit) -> bool:
    view = LayerView(layer.node)
    constant = known_constant(layer.node.inputs[1])
    values = constant_array(constant)
    weight = view.weight(values).astype(np.float64)
    if any(moments.rows < 2 for moments in seen):
        return False
    return fit(model, layer.node, seen, weight)


def fit_layer(model: Model, node: Node, seen: Sequence[Moments], weight: Matrix, ridge: float = RIDGE) -> bool:
    """Fit a layer to what it was fed; without a bias where it has no place for one. False when that is not finite.

    Args:
        model: the model.
        node: the layer.
        seen: of each group of it.
        weight: what the fit stays near to, [groups, results, columns].
        ridge: how strongly.
    """
    parts = about_its_means(node, seen, weight)
    pairs = [ridge_fit(part, own, ridge) for part, own in zip(parts, weight, strict=True)]
    return set_weights(model, node, [pair[0] for pair in pairs], [pair[1] for pair in pairs])


def about_its_means(node: Node, seen: Sequence[Moments], weight: Matrix) -> list[Moments]:
    """What a layer was fed, about the means where it has a place for a bias, which holds them, or else about zero."""
    has_bias = takes_bias(node, weight.shape[0] * weight.shape[1])
    return [moments if has_bias else moments.about_zero for moments in seen]


def set_weights(model: Model, node: Node, weights: Sequence[Matrix], biases: Sequence[Matrix]) -> bool:
    """Give a layer fitted weights and biases, one of each per group; False when they are not finite.

    Args:
        model: the model.
        node: the layer.
        weights: [results, columns] of each group.
        biases: [results] of each group.
    """
    values = constant_array(known_constant(node.inputs[1]))
    fitted, bias = np.stack(weights), np.concatenate(biases)
    with np.errstate(over="ignore"):
        stored = LayerView(node).stored(fitted, values.shape).astype(values.dtype)
        narrow_bias = bias.astype(values.dtype)
    if not (np.isfinite(stored).all() and np.isfinite(narrow_bias).all()):
        return False
    replace_input(node, 1, model.rewrite_constant(node.inputs[1], stored))
    if node.op == "MatMul":
        # Its results have no bias of their own.
        shift_bias(model, node, bias)
    else:
        set_bias(model, node, bias)
    return True


def layers_to_refit(model: Model, readers: Iterable[str], kept: Mapping[str, NDArray[np.bool_]]) -> list[RefitLayer]:
    """The layers among `readers` that can be fitted, in graph order.

    Args:
        model: the pruned model.
        readers: names of nodes that lost inputs.
        kept: layer -> which of its results stay.
    """
    wanted = set(readers)
    return [
        RefitLayer(node, kept[str(node.name)])
        for node in model.graph.nodes
        if node.name in wanted and has_view(node) and str(node.name) in kept
    ]
