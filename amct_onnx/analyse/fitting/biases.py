"""Biases of layers, wherever they stand."""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence

import numpy as np
from numpy.typing import NDArray

from amct_onnx.graph import Model, constant_array
from amct_onnx.graph.edit import append_input, replace_input
from amct_onnx.graph.op_table import known_constant, resolve_constant
from amct_onnx.graph.parts import Constant, Node, Tensor, Variable


def set_bias(model: Model, node: Node, bias: NDArray[np.float64], *, readers: int = 1) -> bool:
    """Give a Conv or Gemm this bias; False for other layers, and where the bias is computed.

    Args:
        model: the model.
        node: the layer.
        bias: [results].
        readers: how many layers are about to have it.
    """
    if node.op == "MatMul" or not beta(node):
        return False
    stored = bias / beta(node)
    if len(node.inputs) < 3 or node.inputs[2].is_empty():
        dtype = known_constant(node.inputs[1]).dtype
        append_input(node, 2, model.add_constant(f"{node.name}.bias", stored.astype(dtype)), Variable.empty())
        return True
    old = resolve_constant(node.inputs[2])
    if old is None:
        return False
    whole = np.broadcast_to(stored, np.broadcast_shapes(stored.shape, old.shape)).astype(old.dtype)
    replace_input(node, 2, model.rewrite_constant(node.inputs[2], whole.copy(), readers))
    return True


def shift_bias(model: Model, node: Node, shift: NDArray[np.float64], *, readers: int = 1) -> bool:
    """Add to a layer's bias, for a MatMul to the constant that the Add behind it adds; False where there is none.

    Args:
        model: the model.
        node: the layer.
        shift: [results].
        readers: how many layers are about to have the new bias.
    """
    if node.op != "MatMul":
        old = resolve_constant(node.inputs[2]) if len(node.inputs) > 2 and not node.inputs[2].is_empty() else None
        bias = shift if old is None else beta(node) * constant_array(old) + shift
        return set_bias(model, node, bias, readers=readers)
    found = _added_behind(node, shift.size)
    if found is None:
        return False
    add, index, constant = found
    values = (constant_array(constant) + shift).astype(constant.dtype)
    replace_input(add, index, model.rewrite_constant(add.inputs[index], values, readers))
    return True


def share_bias(node: Node, others: Sequence[Node], results: int) -> None:
    """Give other layers, which have their biases where this one has its own, the same constant.

    Args:
        node: the layer.
        others: the other layers.
        results: how many results each of them has.
    """
    places = [place for one in (node, *others) if (place := _place(one, results))]
    for holder, index in places[1:]:
        first, own = places[0]
        append_input(holder, index, first.inputs[own], Variable.empty())


def _place(node: Node, results: int) -> tuple[Node, int] | None:
    """The node that adds a layer's bias, and as which input; None where there is none."""
    if node.op == "MatMul":
        found = _added_behind(node, results)
        return found[:2] if found else None
    return node, 2


def bias_key(node: Node) -> Hashable:
    """Equal for layers that have their biases in common, or none: what else they add is taken off before a fit."""
    if node.op == "MatMul":
        weight = resolve_constant(node.inputs[1])
        found = None if weight is None else _added_behind(node, int(weight.shape[-1]))
        return id(found[2]) if found else None
    constant = resolve_constant(node.inputs[2]) if len(node.inputs) > 2 and not node.inputs[2].is_empty() else None
    if own_addend(node) is not None:
        return "an addend"
    return None if constant is None else id(constant)


def takes_bias(node: Node, results: int) -> bool:
    """Whether a layer of so many results can be given a bias: whether :func:`shift_bias` would do it."""
    if node.op == "MatMul":
        return _added_behind(node, results) is not None
    return own_addend(node) is None and bool(beta(node))


def own_addend(node: Node) -> Tensor | None:
    """What a Conv or Gemm adds to its results that is no constant bias of one number each; None where nothing is."""
    if node.op == "MatMul" or len(node.inputs) < 3 or node.inputs[2].is_empty() or not beta(node):
        return None
    constant = resolve_constant(node.inputs[2])
    is_bias = constant is not None and math.prod(constant.shape[:-1]) == 1
    return None if is_bias else node.inputs[2]


def beta(node: Node) -> float:
    """What a layer multiplies its bias with."""
    return float(node.attrs.get("beta", 1.0)) if node.op == "Gemm" else 1.0


def _added_behind(node: Node, results: int) -> tuple[Node, int, Constant] | None:
    """The Add that alone reads a product and adds a value for each result: it, which input that is, and the values."""
    weight = resolve_constant(node.inputs[1])
    if weight is None or int(weight.shape[-1]) != results:
        # Behind a weight that comes first channels are not the last axis; many matrices have one bias each.
        return None
    readers = list(node.outputs[0].outputs)
    if len(readers) != 1 or readers[0].op != "Add":
        return None
    add = readers[0]
    index = 1 if add.inputs[0] is node.outputs[0] else 0
    constant = resolve_constant(add.inputs[index])
    if constant is None or not constant.shape or int(constant.shape[-1]) != results:
        return None
    return add, index, constant
