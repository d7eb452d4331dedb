"""MatMuls whose constant is the first input, or a vector, become ones with a matrix as second input."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from amct_onnx.graph.edit import Editor, replace_input, replace_output
from amct_onnx.graph.model import Model
from amct_onnx.graph.op_table import is_standard, rank_of, resolve_constant
from amct_onnx.graph.parts import Constant, Node, Tensor
from amct_onnx.graph.shapes import Shape, infer_shapes
from amct_onnx.graph.weights import Array, DerivedValues
from amct_onnx.passes.base import RearrangeResult
from amct_onnx.passes.weight_source import WeightSource, weight_source

_NEGATIVE_AXES_OPSET = 11
_AXES_INPUT_OPSET = 13


@dataclass(frozen=True)
class TurnProduct:
    """``W @ x = (x^T @ W^T)^T`` for constant W, and ``x @ w = squeeze(x @ W)`` with the vector w as one column.

    The data input of devices' and runtimes' integer kernels is the first one. The MatMul keeps its name, the result its
    own. Values only move, so what is summed up stays the same. Only in the main graph; a constant on the left is turned
    only where the number of axes of x is known.
    """

    def run(self, model: Model) -> RearrangeResult:
        """Turn wherever the rule fits."""
        work = _Turning(model)
        for node in list(model.graph.nodes):
            if node.op == "MatMul" and is_standard(node) and len(node.inputs) == 2:
                work.turn(node)
        work.finish()
        return RearrangeResult(tuple(work.changed), moved=work.moved)


class _Turning:
    def __init__(self, model: Model) -> None:
        self._model = model
        self._editor = Editor(model)
        self._inferred: Mapping[str, Shape] | None = None
        self._turned: dict[int, Tensor] = {}
        self._weights: dict[tuple[int, tuple[int, ...]], Constant] = {}
        self._transposes: dict[int, Node] = {}
        self.changed: list[str] = []
        self.moved: dict[str, str] = {}

    def turn(self, node: Node) -> None:
        first, second = (weight_source(tensor) for tensor in node.inputs)
        if first is not None and second is None and resolve_constant(node.inputs[1]) is None:
            self._left(node, first)
        elif second is not None and len(second.shape) == 1 and resolve_constant(node.inputs[0]) is None:
            self._column(node, node.inputs[1], second, node.inputs[0])

    def finish(self) -> None:
        """Remove transpositions that nothing reads any more."""
        for node in self._transposes.values():
            result = node.outputs[0]
            if not (result.outputs or self._editor.is_output(result) or self._editor.is_body_output(result)):
                self._editor.remove(node)
        self._editor.commit()

    def _left(self, node: Node, weight: WeightSource) -> None:
        data = node.inputs[1]
        rank = self._rank(data)
        if rank is None:
            return
        turned = data if rank == 1 else self._turn_data(node, data, rank)
        if len(weight.shape) == 1:
            self._column(node, node.inputs[0], weight, turned)
            return
        self._replace(node, node.inputs[0], weight, turned, (*weight.shape[:-2], weight.shape[-1], weight.shape[-2]))
        if rank > 1:
            order = _swapped(max(rank, len(weight.shape)))
            self._behind(node, Node("Transpose", f"{node.name}.transpose_back", {"perm": order}))

    def _column(self, node: Node, old: Tensor, weight: WeightSource, data: Tensor) -> None:
        """Multiply `data` with the vector as a matrix of one column, and drop that axis of the result."""
        rank = self._rank(data)
        if rank is None and self._model.opset < _NEGATIVE_AXES_OPSET:
            return
        self._replace(node, old, weight, data, (weight.shape[0], 1))
        axes = [-1 if self._model.opset >= _NEGATIVE_AXES_OPSET or rank is None else rank - 1]
        squeeze = Node("Squeeze", f"{node.name}.squeeze")
        if self._model.opset < _AXES_INPUT_OPSET:
            squeeze.attrs = {"axes": axes}
            self._behind(node, squeeze)
        else:
            self._behind(node, squeeze, self._model.add_constant(f"{node.name}.axes", np.array(axes, np.int64)))

    def _replace(self, node: Node, old: Tensor, weight: WeightSource, data: Tensor, shape: tuple[int, ...]) -> None:
        """Give the node its data, and for `old` the weight in another shape, one for all nodes that read `old`."""
        if weight.transpose is not None:
            self._transposes[id(weight.transpose)] = weight.transpose
        key = (id(old), shape)
        if key not in self._weights:
            self._weights[key] = self._rearranged(old, weight, shape)
        replace_input(node, 0, data)
        replace_input(node, 1, self._weights[key])
        self.changed.append(node.name)

    def _rearranged(self, old: Tensor, weight: WeightSource, shape: tuple[int, ...]) -> Constant:
        if weight.transpose is not None and weight.perm == _swapped(len(weight.shape)):
            return weight.constant
        values = DerivedValues(list(shape), weight.constant.dtype, lambda: _arranged(weight, shape))
        return self._model.add_constant(f"{old.name}.turned", values)

    def _turn_data(self, node: Node, data: Tensor, rank: int) -> Tensor:
        if id(data) not in self._turned:
            turned = self._model.new_tensor(f"{node.name}.transposed", data.dtype)
            shape = list(self._shape(data) or [None] * rank)
            turned.shape = [shape[axis] for axis in _swapped(rank)]
            perm = {"perm": _swapped(rank)}
            self._editor.insert_before(node, [Node("Transpose", f"{node.name}.transpose", perm, [data], [turned])])
            self._turned[id(data)] = turned
            self.moved[turned.name] = data.name
        return self._turned[id(data)]

    def _behind(self, node: Node, last: Node, *operands: Tensor) -> None:
        """Let `last` make the node's result from its product."""
        result = node.outputs[0]
        product = self._model.new_tensor(f"{node.name}.product", result.dtype)
        replace_output(node, 0, product)
        made = Node(last.op, last.name, last.attrs, [product, *operands], [result])
        self._editor.insert_after(node, [made])
        self.moved[product.name] = result.name

    def _rank(self, tensor: Tensor) -> int | None:
        shape = self._shape(tensor)
        return None if shape is None else len(shape)

    def _shape(self, tensor: Tensor) -> Shape | None:
        if rank_of(tensor) is not None:
            return tuple(tensor.shape)
        if self._inferred is None:
            self._inferred = infer_shapes(self._model.proto, self._model.base_dir)
        return self._inferred.get(tensor.name)


def _swapped(rank: int) -> list[int]:
    """The permutation that swaps the last two axes."""
    return [*range(rank - 2), rank - 1, rank - 2]


def _arranged(weight: WeightSource, shape: tuple[int, ...]) -> Array:
    values = weight.values()
    return np.ascontiguousarray(values.reshape(shape) if values.ndim == 1 else np.swapaxes(values, -1, -2))
