"""Layers that apply one weight, as the steps of an unrolled recurrent layer do: looked at and fitted as one layer."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Protocol

import numpy as np

from amct_onnx.analyse.fitting.biases import bias_key
from amct_onnx.analyse.fitting.views import layer_view
from amct_onnx.graph.op_table import known_constant
from amct_onnx.graph.parts import Node
from amct_onnx.graph.weights import Array


def sharing_key(node: Node) -> Hashable:
    """Equal for layers that have weight, bias and attributes in common, the weight as the same input.

    Args:
        node: a layer that can be fitted.
    """
    index = layer_view(node).index
    return node.op, index, id(known_constant(node.inputs[index])), bias_key(node), repr(sorted(node.attrs.items()))


def together(nodes: Iterable[Node]) -> list[tuple[Node, ...]]:
    """The layers, those that are one in a tuple, in the order in which the first of them come."""
    found: dict[Hashable, list[Node]] = {}
    for node in nodes:
        found.setdefault(sharing_key(node), []).append(node)
    return [tuple(alike) for alike in found.values()]


class View(Protocol):
    """What a layer multiplies with a weight, row by row."""

    def rows(
        self, inputs: Mapping[str, Array], results: Mapping[str, Array], rng: np.random.Generator
    ) -> tuple[Array, Array]:
        """Some rows and their results."""


def rows_of_all(
    views: Sequence[View], inputs: Mapping[str, Array], results: Mapping[str, Array], rng: np.random.Generator
) -> tuple[Array, Array]:
    """Rows and results of layers that are one, see :meth:`LayerView.rows`.

    Args:
        views: of the layers.
        inputs: what they read, by name.
        results: what they give, of the same or of another model, by name.
        rng: chooses the rows.
    """
    pairs = [view.rows(inputs, results, rng) for view in views]
    if len(pairs) == 1:
        return pairs[0]
    rows, given = (np.concatenate(parts) for parts in zip(*pairs, strict=True))
    return rows, given
