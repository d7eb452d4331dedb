"""Bring Gemm into the one form that quantized layers use."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np

from amct_onnx.graph.edit import drop_attributes, replace_input
from amct_onnx.graph.model import Model, constant_array
from amct_onnx.graph.op_table import known_constant
from amct_onnx.graph.parts import Constant, Node
from amct_onnx.graph.weights import Array, DerivedValues
from amct_onnx.passes.base import PassResult


@dataclass(frozen=True)
class FoldGemm:
    """``alpha * A @ op(B) + beta * C`` becomes ``A @ B' + C'`` with C' of shape [N]; constants only.

    Attributes:
        names: the Gemm nodes to fold; others are left as they are.
    """

    names: Collection[str]

    def run(self, model: Model) -> PassResult:
        """Fold the named nodes that are not in that form yet."""
        names = set(self.names)
        nodes = [node for node in model.nodes() if node.op == "Gemm" and node.name in names and not _is_plain(node)]
        for node in nodes:
            _fold_bias(model, node)
        _fold_weights(model, nodes)
        for node in nodes:
            drop_attributes(node, ("alpha", "beta", "transB"))
        return PassResult(tuple(node.name for node in nodes))


def _is_plain(node: Node) -> bool:
    attrs = node.attrs
    is_identity = attrs.get("alpha", 1.0) == 1.0 and attrs.get("beta", 1.0) == 1.0 and not attrs.get("transB", 0)
    return bool(is_identity and (not _has_bias(node) or list(node.inputs[2].shape or ()) == [_channels(node)]))


def _has_bias(node: Node) -> bool:
    return len(node.inputs) > 2 and not node.inputs[2].is_empty()


def _channels(node: Node) -> int:
    return int(known_constant(node.inputs[1]).shape[0 if node.attrs.get("transB", 0) else 1])


def _fold_weights(model: Model, nodes: Sequence[Node]) -> None:
    """Fold alpha and transB; nodes that share a weight and fold it alike share the result."""
    groups: dict[tuple[int, float, bool], list[Node]] = {}
    for node in nodes:
        alpha, transposed = float(node.attrs.get("alpha", 1.0)), bool(node.attrs.get("transB", 0))
        if alpha != 1.0 or transposed:
            groups.setdefault((id(node.inputs[1]), alpha, transposed), []).append(node)
    for (_, alpha, transposed), members in groups.items():
        old = members[0].inputs[1]
        new = model.rewrite_constant(old, _folded(known_constant(old), alpha, transposed=transposed), len(members))
        for node in members:
            replace_input(node, 1, new)


def _folded(weight: Constant, alpha: float, *, transposed: bool) -> DerivedValues:
    def values() -> Array:
        array = constant_array(weight)
        array = array.T if transposed else array
        return np.ascontiguousarray(array * np.float32(alpha) if alpha != 1.0 else array)

    shape = [int(dim) for dim in weight.shape]
    return DerivedValues(shape[::-1] if transposed else shape, weight.dtype, values)


def _fold_bias(model: Model, node: Node) -> None:
    """Fold beta and give C the shape [N]."""
    if _has_bias(node):
        values = constant_array(known_constant(node.inputs[2])) * np.float32(node.attrs.get("beta", 1.0))
        row = np.array(np.broadcast_to(values.reshape(-1), (values.size if values.size > 1 else _channels(node),)))
        replace_input(node, 2, model.rewrite_constant(node.inputs[2], row))
