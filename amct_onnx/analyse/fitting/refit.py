"""Recovery without training: layers that read pruned channels are fitted again to the float model's results.

Layers are taken in topological order, several at a time, so that each is fitted on what the pruned model, already
fitted before it, really feeds it. No labels are needed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import zip_longest
from pathlib import Path
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray
from onnx import ModelProto

from amct_onnx.analyse.fitting.biases import set_bias, share_bias, shift_bias, takes_bias
from amct_onnx.analyse.fitting.data import FittingData
from amct_onnx.analyse.fitting.evidence import Evidence, check_finite, evidence
from amct_onnx.analyse.fitting.moments import RIDGE, Matrix, Moments, about_common_bias, lost_share, ridge_fit
from amct_onnx.analyse.fitting.shared import rows_of_all, together
from amct_onnx.analyse.fitting.targets import other_operands, with_what_was_lost
from amct_onnx.analyse.fitting.views import LayerView, has_view, layer_view
from amct_onnx.analyse.resume import Resumed, alive_before
from amct_onnx.analyse.walk import walk_together
from amct_onnx.graph import Model, build, constant_array
from amct_onnx.graph.edit import replace_input
from amct_onnx.graph.op_table import known_constant
from amct_onnx.graph.parts import Node
from amct_onnx.graph.weights import Array
from amct_onnx.passes.drop_dead import DropDeadConstants

MOST_STAGES = 16
"""Walks over the data; layers of one walk do not see each other's fit."""


LayerFit: TypeAlias = Callable[[Model, Node, Sequence[Moments], Matrix], bool]
"""Gives a layer other weights, from what it was fed and its weight [parts, results, columns]; whether it could."""


@dataclass(frozen=True)
class RefitLayer:
    """A layer to fit.

    Attributes:
        node: the layer in the pruned model.
        results: which of its results stay, of the float model's: bool [results].
        others: further layers that are fitted as one with it, see :func:`sharing_key`.
    """

    node: Node
    results: NDArray[np.bool_]
    others: tuple[Node, ...] = ()

    @property
    def nodes(self) -> tuple[Node, ...]:
        """All layers that are one."""
        return self.node, *self.others

    @property
    def views(self) -> list[LayerView]:
        """Their views."""
        return [layer_view(node) for node in self.nodes]


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
    size = max(1, -(-len(layers) // walks))
    stages = [layers[begin : begin + size] for begin in range(0, len(layers), size)]
    others = _other_operands(model, stages)
    both = Resumed(), Resumed()
    found: dict[str, Evidence] = {}
    for stage, following in zip_longest(stages, stages[1:], fillvalue=()):
        fitted = build(model)
        # The pruned model changes from this stage on, the float model nowhere.
        added = {others[name] for layer in stage if (name := str(layer.node.name)) in others}
        both[0].begin(proto, base_dir, _given(stage) | added, _alive_before(proto, following))
        both[1].begin(fitted, None, _read(stage) | added, _alive_before(fitted.skeleton, stage))
        seen = _moments(both, stage, others, given)
        for layer in stage:
            moments = seen[str(layer.node.name)]
            is_fitted = _fit(model, layer, moments, fit or partial(fit_layer, others=layer.others))
            lost = _lost(layer.node, moments) if is_fitted else None
            found |= {str(node.name): evidence(moments, is_fitted=is_fitted, lost=lost) for node in layer.nodes}
    check_finite(found)
    # Values that stood in Constant nodes have given way to initializers.
    DropDeadConstants().run(model)
    return found


def _other_operands(model: Model, stages: Sequence[Sequence[RefitLayer]]) -> dict[str, str]:
    """See :func:`other_operands`; layers that are one stand in several sums, and are fitted to their own results."""
    found = other_operands(model.graph, [[node for layer in stage for node in layer.nodes] for stage in stages])
    alone = {str(layer.node.name) for stage in stages for layer in stage if not layer.others}
    return {name: other for name, other in found.items() if name in alone}


def _read(layers: Sequence[RefitLayer]) -> frozenset[str]:
    """The tensors of the rows of some layers."""
    return frozenset(name for layer in layers for view in layer.views for name in view.reads)


def _given(layers: Sequence[RefitLayer]) -> frozenset[str]:
    """The tensors of their results."""
    return frozenset(view.gives for layer in layers for view in layer.views)


def _alive_before(proto: ModelProto, layers: Sequence[RefitLayer]) -> frozenset[str]:
    """What is alive before some layers run."""
    return alive_before(proto, _given(layers))


def _moments(
    models: tuple[Resumed, Resumed], layers: Sequence[RefitLayer], others: Mapping[str, str], given: FittingData
) -> dict[str, list[Moments]]:
    """What the layers read in the second model, the pruned one, with what they should give by the first, the float."""
    seen = {str(layer.node.name): [Moments() for _ in range(layer_view(layer.node).parts)] for layer in layers}
    rng = np.random.default_rng(given.seed)

    def take(tensors: Sequence[Mapping[str, Array]], feed: str) -> None:
        for layer in layers:
            wanted = _wanted(layer, tensors, others.get(str(layer.node.name), ""))
            rows, results = rows_of_all(layer.views, tensors[1], wanted, rng)
            for part, moments in enumerate(seen[str(layer.node.name)]):
                moments.update(rows[:, part], results[:, part], feed)

    walk_together(models, given.data, take, limit=given.feeds, progress=given.progress)
    return seen


def _wanted(layer: RefitLayer, tensors: Sequence[Mapping[str, Array]], other: str) -> dict[str, Array]:
    """What a layer should give, by the tensors of its results."""
    found: dict[str, Array] = {}
    for view in layer.views:
        axis = view.axis(tensors[0][view.gives].ndim)
        found[view.gives] = with_what_was_lost(tensors, other, layer.results, axis, view.gives)
    return found


def _fit(model: Model, layer: RefitLayer, seen: Sequence[Moments], fit: LayerFit) -> bool:
    if any(moments.rows < 2 for moments in seen):
        return False
    return fit(model, layer.node, seen, layer_weight(layer.node))


def _lost(node: Node, seen: Sequence[Moments]) -> float:
    """What the fitted layer does not give of what is wanted of it."""
    weight = layer_weight(node)
    return lost_share(about_its_means(node, seen, weight), list(weight))


def layer_weight(node: Node) -> Matrix:
    """A layer's weight: float64 [parts, results, columns]."""
    view = layer_view(node)
    return np.asarray(view.weight(constant_array(known_constant(node.inputs[view.index]))), np.float64)


def fit_layer(
    model: Model, node: Node, seen: Sequence[Moments], weight: Matrix, *, others: Sequence[Node] = ()
) -> bool:
    """Fit a layer to what it was fed; without a bias where it has no place for one. False when that is not finite.

    Args:
        model: the model.
        node: the layer.
        seen: of each part of it.
        weight: what the fit stays near to, [parts, results, columns].
        others: further layers that get the same weight and bias.
    """
    parts = about_its_means(node, seen, weight)
    pairs = [ridge_fit(part, own, RIDGE) for part, own in zip(parts, weight, strict=True)]
    return set_weights(model, node, [pair[0] for pair in pairs], [pair[1] for pair in pairs], others=others)


def about_its_means(node: Node, seen: Sequence[Moments], weight: Matrix) -> list[Moments]:
    """What a layer was fed, about the means where it has a place for a bias, which holds them, or else about zero.

    Parts that have a bias in common are left about zero, with the bias that suits all of them taken off.
    """
    view = layer_view(node)
    if not takes_bias(node, view.channels):
        return [moments.about_zero for moments in seen]
    if view.copies == 1:
        return list(seen)
    pairs = list(zip(seen, weight, strict=True))
    blocks = [pairs[begin : begin + view.copies] for begin in range(0, len(pairs), view.copies)]
    return [part for block in blocks for part in about_common_bias(*zip(*block, strict=True), ridge=RIDGE)]


def set_weights(
    model: Model, node: Node, weights: Sequence[Matrix], biases: Sequence[Matrix], *, others: Sequence[Node] = ()
) -> bool:
    """Give a layer fitted weights and biases, one of each per part; False when they are not finite.

    Args:
        model: the model.
        node: the layer.
        weights: [results, columns] of each part.
        biases: [results] of each part; parts that have one in common have the same.
        others: further layers that get the same, and have the same weight and bias now.
    """
    view = layer_view(node)
    dtype = known_constant(node.inputs[view.index]).dtype
    bias = np.concatenate(biases[:: view.copies])
    with np.errstate(over="ignore"):
        stored = view.stored(np.stack(weights)).astype(dtype)
        narrow_bias = bias.astype(dtype)
    if not (np.isfinite(stored).all() and np.isfinite(narrow_bias).all()):
        return False
    readers = 1 + len(others)
    new = model.rewrite_constant(node.inputs[view.index], stored, readers)
    for one in (node, *others):
        replace_input(one, view.index, new)
    if not takes_bias(node, bias.size):
        return True
    # The results of a product have no bias of their own.
    give = shift_bias if node.op == "MatMul" else set_bias
    if give(model, node, bias, readers=readers):
        share_bias(node, others, bias.size)
    return True


def layers_to_refit(model: Model, readers: Iterable[str], kept: Mapping[str, NDArray[np.bool_]]) -> list[RefitLayer]:
    """The layers among `readers` that can be fitted, in graph order.

    Args:
        model: the pruned model.
        readers: names of nodes that lost inputs.
        kept: layer -> which of its results stay.
    """
    wanted = set(readers)
    nodes = [node for node in model.graph.nodes if node.name in wanted and has_view(node) and str(node.name) in kept]
    return [RefitLayer(first, kept[str(first.name)], tuple(others)) for first, *others in together(nodes)]
