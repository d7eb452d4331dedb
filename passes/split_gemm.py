"""Gemms that hold more than a product and a bias row become one that holds just that, and nodes beside it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from amct_onnx.graph.edit import Editor, drop_attributes, drop_last_input, replace_input, replace_output
from amct_onnx.graph.model import Model, constant_array
from amct_onnx.graph.op_table import is_standard, resolve_constant
from amct_onnx.graph.parts import Constant, Node, Tensor
from amct_onnx.graph.weights import Array, DerivedValues
from amct_onnx.passes.affine import BROADCAST_OPSET
from amct_onnx.passes.base import RearrangeResult
from amct_onnx.passes.weight_source import WeightSource, weight_source


@dataclass(frozen=True)
class SplitGemm:
    """``alpha * A^T @ B + beta * C`` with constant B: A is transposed by a node before, C is added by one behind.

    C stays where it is one value per output channel, or one for all. The Gemm keeps its name; the Add, named
    ``NAME.add_c``, makes the result. Only in the main graph, and only where Add broadcasts as Gemm does.
    """

    def run(self, model: Model) -> RearrangeResult:
        """Split wherever the rule fits."""
        work = _Splitting(model)
        if model.opset >= BROADCAST_OPSET:
            for node in model.graph.nodes:
                work.split(node)
        work.editor.commit()
        return RearrangeResult(tuple(work.changed), moved=work.moved, unseen=frozenset(work.adds))


class _Splitting:
    def __init__(self, model: Model) -> None:
        self._model = model
        self.editor = Editor(model)
        self.changed: list[str] = []
        self.moved: dict[str, str] = {}
        self.adds: list[str] = []

    def split(self, node: Node) -> None:
        weight = _weight(node)
        if weight is None:
            return
        is_turned, is_added = bool(node.attrs.get("transA", 0)), not _adds_row(node, weight)
        if is_turned:
            self._transpose(node)
        if is_added:
            self._add(node, weight)
        if is_turned or is_added:
            drop_attributes(node, ("transA", "beta") if is_added else ("transA",))
            self.changed.append(node.name)

    def _transpose(self, node: Node) -> None:
        data = node.inputs[0]
        turned = self._model.new_tensor(f"{node.name}.transposed", data.dtype)
        turned.shape = None if data.shape is None else list(data.shape)[::-1]
        before = Node("Transpose", f"{node.name}.transpose", {"perm": [1, 0]}, [data], [turned])
        self.editor.insert_before(node, [before])
        replace_input(node, 0, turned)
        self.moved[turned.name] = data.name

    def _add(self, node: Node, weight: WeightSource) -> None:
        addend, beta = node.inputs[2], float(node.attrs.get("beta", 1.0))
        drop_last_input(node)
        if beta == 0.0:
            return
        result = node.outputs[0]
        product = self._model.new_tensor(f"{node.name}.product", result.dtype or weight.constant.dtype)
        product.shape = result.shape
        replace_output(node, 0, product)
        name = f"{node.name}.add_c"
        operand = addend if beta == 1.0 else self._scaled(node, addend, beta, weight.constant.dtype)
        self.editor.insert_after(node, [Node("Add", name, inputs=[product, operand], outputs=[result])])
        self.adds.append(name)

    def _scaled(self, node: Node, addend: Tensor, beta: float, dtype: np.dtype[np.generic]) -> Tensor:
        """``beta * C``, where it is wanted: a constant again, or by a node."""
        constant = resolve_constant(addend)
        if constant is not None:
            return self._model.add_constant(f"{node.name}.c", _multiplied(constant, beta))
        factor = self._model.add_constant(f"{node.name}.beta", np.array(beta, dtype))
        scaled = self._model.new_tensor(f"{node.name}.c", np.dtype(dtype))
        scaled.shape = addend.shape
        self.editor.insert_after(node, [Node("Mul", f"{node.name}.beta", inputs=[addend, factor], outputs=[scaled])])
        return scaled


def _weight(node: Node) -> WeightSource | None:
    """The weight of a Gemm that would be quantized were it split."""
    if node.op != "Gemm" or not is_standard(node) or resolve_constant(node.inputs[0]) is not None:
        return None
    weight = weight_source(node.inputs[1])
    return weight if weight is not None and len(weight.shape) == 2 else None


def _adds_row(node: Node, weight: WeightSource) -> bool:
    """Whether C is absent, or constant with one value per output channel or one for all."""
    if len(node.inputs) < 3 or node.inputs[2].is_empty():
        return True
    constant = resolve_constant(node.inputs[2])
    channels = weight.shape[0 if node.attrs.get("transB", 0) else 1]
    return constant is not None and _is_row(constant.shape, channels)


def _is_row(shape: Sequence[int], channels: int) -> bool:
    size = math.prod(shape)
    return size == 1 or (size == channels and (not shape or shape[-1] == channels))


def _multiplied(constant: Constant, beta: float) -> DerivedValues:
    def values() -> Array:
        array = constant_array(constant)
        return np.asarray(array * array.dtype.type(beta), array.dtype)

    return DerivedValues([int(size) for size in constant.shape], constant.dtype, values)
