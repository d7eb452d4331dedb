"""Fold a BatchNormalization into the convolution before it."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import numpy as np

from amct_onnx.graph.edit import Editor, append_input, replace_input, replace_output
from amct_onnx.graph.model import Model, constant_array
from amct_onnx.graph.op_table import known_constant, resolve_constant
from amct_onnx.graph.parts import Constant, Node, Variable
from amct_onnx.graph.weights import Array, DerivedValues
from amct_onnx.passes.base import PassResult, Refusal

_BN_INFERENCE_OPSET = 7
"""From this operator set on BatchNormalization means inference by default; before, `is_test` had to say so."""


@dataclass(frozen=True)
class FuseConvBn:
    """Conv followed by an inference BatchNormalization becomes one Conv.

    ``w' = w * gamma / sqrt(var + eps)`` along the output channels, ``b' = (b - mean) * gamma / sqrt(var + eps) +
    beta``, computed in float64. Only where the normalization is the convolution's single reader, all tensors are
    constant, no other node reads the convolution's weight or bias, and the result is finite.

    Attributes:
        skip: names of convolutions to leave alone.
    """

    skip: Collection[str] = ()

    def run(self, model: Model) -> PassResult:
        """Fuse wherever the rule fits."""
        editor = Editor(model)
        in_bodies = model.body_node_ids()
        merged: dict[str, tuple[str, ...]] = {}
        refusals: list[Refusal] = []
        for node in model.graph.nodes:
            norm = _following_norm(node)
            if norm is None:
                continue
            reason = self._reason_against(node, norm, editor)
            if id(norm) in in_bodies:
                reason = "it lies inside a control-flow body"
            if reason is None and model.opset < _BN_INFERENCE_OPSET and not norm.attrs.get("is_test", 0):
                reason = "it is in training mode"
            if reason is not None:
                refusals.append(Refusal(norm.name, norm.op, f"not fused into '{node.name}': {reason}"))
                continue
            merged[node.name] = (node.name, norm.name)
            _fuse(model, editor, node, norm)
        editor.commit()
        return PassResult(tuple(merged), tuple(refusals), merged)

    def _reason_against(self, conv: Node, norm: Node, editor: Editor) -> str | None:
        if conv.name in self.skip:
            return "skipped on request"
        product = conv.outputs[0]
        if len(product.outputs) != 1 or editor.is_output(product) or editor.is_body_output(product):
            return "the convolution's output has other readers"
        if norm.attrs.get("training_mode", 0) or any(not out.is_empty() for out in norm.outputs[1:]):
            return "it is in training mode"
        if not norm.attrs.get("spatial", 1):
            return "it normalizes every position on its own"
        tensors = [*conv.inputs[1:], *norm.inputs[1:]]
        if any(resolve_constant(tensor) is None for tensor in tensors if not tensor.is_empty()):
            return "weights or statistics are computed at run time"
        if any(len(tensor.outputs) != 1 for tensor in conv.inputs[1:] if not tensor.is_empty()):
            return "the convolution shares its weights with another node"
        if known_constant(conv.inputs[1]).dtype != np.float32:
            return "only float32 is fused"
        if not all(np.all(np.isfinite(values)) for values in _affine(norm)):
            return "its statistics give values that are not finite"
        return None


def _following_norm(node: Node) -> Node | None:
    if node.op != "Conv" or node.domain not in (None, "", "ai.onnx"):
        return None
    product = node.outputs[0]
    readers: list[Node] = product.outputs
    return next((reader for reader in readers if _is_norm(reader) and reader.inputs[0] is product), None)


def _is_norm(node: Node) -> bool:
    return bool(node.op == "BatchNormalization" and node.domain in (None, "", "ai.onnx"))


def _fuse(model: Model, editor: Editor, conv: Node, norm: Node) -> None:
    weight = known_constant(conv.inputs[1])
    has_bias = len(conv.inputs) > 2 and not conv.inputs[2].is_empty()
    bias = known_constant(conv.inputs[2]) if has_bias else None
    factor, shift = _affine(norm)

    def fused_weight() -> Array:
        values = constant_array(weight).astype(np.float64)
        return np.asarray(values * factor.reshape(-1, *[1] * (values.ndim - 1)), dtype=np.float32)

    old_bias = 0.0 if bias is None else constant_array(bias).astype(np.float64)
    new_weight = DerivedValues(list(weight.shape), np.dtype(np.float32), fused_weight)
    new_bias = np.asarray(old_bias * factor + shift, dtype=np.float32)
    replace_input(conv, 1, model.rewrite_constant(conv.inputs[1], new_weight))
    bias_name = conv.inputs[2] if has_bias else Constant(f"{conv.name}.bias", new_bias)
    append_input(conv, 2, model.rewrite_constant(bias_name, new_bias), Variable.empty())
    output = norm.outputs[0]
    editor.remove(norm)
    replace_output(conv, 0, output)


def _affine(norm: Node) -> tuple[Array, Array]:
    """Factor and shift of the normalization per channel, float64."""
    gamma, beta, mean, var = (constant_array(known_constant(t)).astype(np.float64) for t in norm.inputs[1:5])
    with np.errstate(divide="ignore", invalid="ignore"):
        factor = gamma / np.sqrt(var + float(norm.attrs.get("epsilon", 1e-5)))
    return factor, beta - mean * factor
