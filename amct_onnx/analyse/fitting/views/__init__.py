"""Layers as products of rows with a weight, which can be fitted: one way of looking for each operator."""

from __future__ import annotations

from amct_onnx.analyse.fitting.views.base import LayerView
from amct_onnx.analyse.fitting.views.convolution import ConvolutionView
from amct_onnx.analyse.fitting.views.product import GemmView, ProductView
from amct_onnx.analyse.fitting.views.transposed import TransposedView, taps_of_phases
from amct_onnx.graph.op_table import resolve_constant
from amct_onnx.graph.parts import Node

__all__ = ["LayerView", "has_view", "layer_view", "why_no_view"]


def layer_view(node: Node) -> LayerView:
    """The view of a layer that :func:`why_no_view` has nothing against."""
    if node.op == "MatMul":
        return ProductView(node, _weight_of_product(node) or 0)
    if node.op == "Gemm":
        return GemmView(node)
    return TransposedView(node) if node.op == "ConvTranspose" else ConvolutionView(node)


def has_view(node: Node) -> bool:
    """Whether a node is a layer that can be fitted."""
    return not why_no_view(node)


def why_no_view(node: Node) -> str:
    """Why a node cannot be fitted; empty where it can. A depthwise convolution mixes no channels."""
    if node.op not in ("Conv", "ConvTranspose", "Gemm", "MatMul"):
        return f"a {node.op} is not fitted"
    if node.op == "MatMul":
        return "" if _weight_of_product(node) is not None else "it has no weight"
    weight = resolve_constant(node.inputs[1])
    if weight is None:
        return "it has no weight"
    if node.op == "Gemm":
        return "" if node.attrs.get("alpha", 1.0) else "its alpha is 0"
    shape = [int(size) for size in weight.shape]
    group = int(node.attrs.get("group", 1))
    per_group = shape[1] if node.op == "Conv" else shape[0] // group
    if group > 1 and per_group == 1:
        return "a depthwise convolution mixes no channels"
    return _why_torn(node, shape[2:]) if node.op == "ConvTranspose" else ""


def _weight_of_product(node: Node) -> int | None:
    """Which input of a MatMul is the weight: the second, where both are constant."""
    for index in (1, 0):
        constant = resolve_constant(node.inputs[index])
        if constant is not None and len(constant.shape) > 1:
            return index
    return None


def _why_torn(node: Node, kernel: list[int]) -> str:
    """Whether some results of a transposed convolution meet no place of its kernel: they are its bias."""
    strides = node.attrs.get("strides") or [1] * len(kernel)
    dilations = node.attrs.get("dilations") or [1] * len(kernel)
    found = zip(taps_of_phases(kernel, strides, dilations), kernel, strict=True)
    is_torn = any((taps[:, 0] == size).any() for taps, size in found)
    return "results of it that meet no place of its kernel stand between the others" if is_torn else ""
