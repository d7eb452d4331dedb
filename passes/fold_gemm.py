"""Bring Gemm into the one form that quantized layers use."""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass

import numpy as np

from amct_onnx.graph.edit import Editor, replace_input
from amct_onnx.graph.model import Model, Node, constant_array
from amct_onnx.graph.op_table import known_constant
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
        editor = Editor(model)
        names = set(self.names)
        changed: list[str] = []
        for node in model.graph.nodes:
            if node.op == "Gemm" and node.name in names and not _is_plain(node):
                _fold(model, node)
                changed.append(node.name)
        editor.commit()
        return PassResult(tuple(changed))


def _is_plain(node: Node) -> bool:
    attrs = node.attrs
    plain_bias = len(node.inputs) < 3 or node.inputs[2].is_empty() or len(node.inputs[2].shape or ()) == 1
    is_identity = attrs.get("alpha", 1.0) == 1.0 and attrs.get("beta", 1.0) == 1.0 and not attrs.get("transB", 0)
    return bool(is_identity and plain_bias)


def _fold(model: Model, node: Node) -> None:
    alpha, beta = float(node.attrs.get("alpha", 1.0)), float(node.attrs.get("beta", 1.0))
    transposed = bool(node.attrs.get("transB", 0))
    weight = known_constant(node.inputs[1])
    shape = [int(dim) for dim in weight.shape]

    def folded_weight() -> Array:
        values = constant_array(weight)
        values = values.T if transposed else values
        return np.ascontiguousarray(values * np.float32(alpha) if alpha != 1.0 else values)

    if alpha != 1.0 or transposed:
        derived = DerivedValues(shape[::-1] if transposed else shape, weight.dtype, folded_weight)
        replace_input(node, 1, model.rewrite_constant(node.inputs[1], derived))
    if len(node.inputs) > 2 and not node.inputs[2].is_empty():
        channels = shape[0] if transposed else shape[1]
        values = constant_array(known_constant(node.inputs[2]))
        row = np.array(np.broadcast_to(values.reshape(-1), (channels,)) if math.prod(values.shape) == 1 else values)
        replace_input(node, 2, model.rewrite_constant(node.inputs[2], row.reshape(channels) * np.float32(beta)))
    node.attrs = {key: value for key, value in node.attrs.items() if key not in ("alpha", "beta", "transB")}
    node.origin = None
