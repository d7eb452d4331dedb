"""Weights and biases of layers, multiplied and shifted per channel."""

from __future__ import annotations

import math

import numpy as np

from amct_onnx.graph.edit import append_input, drop_attributes, replace_input
from amct_onnx.graph.model import Model, constant_array
from amct_onnx.graph.op_table import is_standard, known_constant, rank_of, resolve_constant
from amct_onnx.graph.parts import Constant, Node, Variable
from amct_onnx.graph.weights import Array, DerivedValues
from amct_onnx.passes.affine import Affine, Layout

BIASED = frozenset({"Conv", "ConvTranspose", "Gemm"})
"""Layers that add a bias themselves; a MatMul has an Add behind it."""

SHARED = "the layer shares its weights with another node"


def weight_of(node: Node) -> Constant | None:
    """The constant weight of a layer that can take a factor; None for other nodes."""
    if node.op not in BIASED | {"MatMul"} or not is_standard(node) or len(node.inputs) < 2:
        return None
    weight = resolve_constant(node.inputs[1])
    if weight is None:
        return None
    is_matrix = node.op in ("Gemm", "MatMul")
    has_rank = len(weight.shape) == 2 if is_matrix else len(weight.shape) > 2
    return weight if has_rank and _group(node) > 0 and weight.shape[0] % _group(node) == 0 else None


def output_layout(node: Node, weight: Constant) -> Layout:
    """Where the output channels of a layer lie."""
    rank = len(weight.shape)
    if node.op == "Conv":
        return Layout(int(weight.shape[0]), rank - 2, rank)
    if node.op == "ConvTranspose":
        return Layout(int(weight.shape[1]) * _group(node), rank - 2, rank)
    if node.op == "Gemm":
        return Layout(int(weight.shape[0 if node.attrs.get("transB", 0) else 1]), 0, 2)
    return Layout(int(weight.shape[1]), 0, rank_of(node.inputs[0]))


def reason_against_layer(node: Node, affine: Affine) -> str | None:
    """Why a layer's constants cannot take `affine`, before or behind the layer."""
    tensors = [tensor for tensor in node.inputs[1:] if not tensor.is_empty()]
    if any(resolve_constant(tensor) is None for tensor in tensors):
        return "weights or statistics are computed at run time"
    needed = tensors if affine.scales else tensors[1:]
    if any(len(tensor.outputs) != 1 for tensor in needed):
        return SHARED
    if any(known_constant(tensor).dtype != np.float32 for tensor in tensors):
        return "only float32 is fused"
    if node.op == "Gemm" and not _has_bias_row(node):
        return "its C input is not one value per output channel"
    return None


def scale_outputs(model: Model, node: Node, factor: Array) -> None:
    """Multiply each output channel of the layer's weight by its factor."""
    is_first = node.op == "Conv" or (node.op == "Gemm" and bool(node.attrs.get("transB", 0)))
    _scale(model, node, factor, axis=1 if is_first else 2)


def scale_inputs(model: Model, conv: Node, factor: Array) -> None:
    """Multiply each input channel of a convolution's weight by its factor."""
    _scale(model, conv, factor, axis=2)


def response(conv: Node, shift: Array) -> Array:
    """What a convolution without padding makes of inputs that are `shift` everywhere, per output channel."""
    weight = known_constant(conv.inputs[1])
    group = _group(conv)
    out, per_group = int(weight.shape[0]), int(weight.shape[1])
    sums = constant_array(weight).astype(np.float64).reshape(out, per_group, -1).sum(axis=2)
    shifts = np.broadcast_to(shift, (group * per_group,)).reshape(group, 1, per_group)
    return np.asarray((sums.reshape(group, -1, per_group) * shifts).sum(axis=2).reshape(-1))


def bias_values(node: Node) -> Array:
    """The layer's bias, float64, of one value or one per output channel; a Gemm's beta included."""
    if len(node.inputs) < 3 or node.inputs[2].is_empty():
        return np.zeros(1)
    values = constant_array(known_constant(node.inputs[2])).astype(np.float64).reshape(-1)
    return np.asarray(values * float(node.attrs.get("beta", 1.0))) if node.op == "Gemm" else values


def set_bias(model: Model, node: Node, bias: Array, channels: int) -> None:
    """Give the layer a bias, where it has one or needs one."""
    has_bias = len(node.inputs) > 2 and not node.inputs[2].is_empty()
    if not has_bias and not np.any(bias):
        return
    values = np.array(np.broadcast_to(bias, (channels,)), np.float32)
    old = node.inputs[2] if has_bias else Constant(f"{node.name}.bias", values)
    new = model.rewrite_constant(old, values)
    append_input(node, 2, new, Variable.empty())
    if node.op == "Gemm":
        drop_attributes(node, ("beta",))


def _has_bias_row(gemm: Node) -> bool:
    if len(gemm.inputs) < 3 or gemm.inputs[2].is_empty():
        return True
    shape = known_constant(gemm.inputs[2]).shape
    return math.prod(shape) == 1 or output_layout(gemm, known_constant(gemm.inputs[1])).takes(shape)


def _group(node: Node) -> int:
    return int(node.attrs.get("group", 1)) if node.op in ("Conv", "ConvTranspose") else 1


def _scale(model: Model, node: Node, factor: Array, *, axis: int) -> None:
    """Multiply the weight, seen as [group, axis 0 of a group, axis 1, ...], by one factor per group and `axis`."""
    weight = known_constant(node.inputs[1])
    shape = [int(size) for size in weight.shape]
    parts = [_group(node), shape[0] // _group(node), *shape[1:]]
    spread = [size if index in (0, axis) else 1 for index, size in enumerate(parts)]
    aligned = factor.reshape(spread if factor.size > 1 else [1] * len(parts))

    def scaled() -> Array:
        values = constant_array(weight).astype(np.float64).reshape(parts) * aligned
        return np.asarray(values.reshape(shape), dtype=np.float32)

    new = DerivedValues(shape, np.dtype(np.float32), scaled)
    replace_input(node, 1, model.rewrite_constant(node.inputs[1], new))
