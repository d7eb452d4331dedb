"""Weights, biases and other constants of layers that a few nodes compute from constants become constants themselves."""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from onnx import NodeProto, helper
from onnx.reference import ReferenceEvaluator

from amct_onnx.graph.edit import Editor, replace_input
from amct_onnx.graph.model import Model, constant_array
from amct_onnx.graph.op_table import is_standard, resolve_constant, spec_of
from amct_onnx.graph.parts import Constant, Node, Tensor
from amct_onnx.graph.weights import Array, DerivedValues
from amct_onnx.passes.base import PassResult

logger = logging.getLogger(__name__)

_MOVES = (
    "Identity",
    "Cast",
    "Reshape",
    "Flatten",
    "Transpose",
    "Squeeze",
    "Unsqueeze",
    "Slice",
    "Concat",
    "Gather",
    "ScatterND",
)
_FILLS = ("Constant", "ConstantOfShape", "Expand", "Tile", "Shape")
_ARITHMETIC = ("Add", "Sub", "Mul", "Div", "Neg", "Sqrt", "Reciprocal", "Pow", "Abs", "Tanh", "Exp")
_SUMS = ("ReduceSum", "ReduceMean", "ReduceL2", "ReduceSumSquare", "ReduceMax")
FOLDED = frozenset((*_MOVES, *_FILLS, *_ARITHMETIC, *_SUMS))
"""What exporters leave before weights: layouts, types, fills, weight normalization. No DequantizeLinear: a weight
behind one is quantized already."""

_LONGEST = 32
_MOST_VALUES = 1 << 28
_READERS = frozenset({"BatchNormalization", "Add", "Mul", "Sub", "Div"})
_MOST_VALUES_BESIDE_LAYERS = 1 << 16


@dataclass(frozen=True)
class FoldWeights:
    """An input of a layer, of BatchNormalization or of arithmetic with constants is folded where a short chain of
    deterministic nodes makes it from constants alone. Values are computed when they are needed, and not kept.

    Nodes of the chain that nothing else reads are removed.
    """

    def run(self, model: Model) -> PassResult:
        """Fold wherever the rule fits."""
        folder = _Folder(model)
        changed = [node.name for graph in model.graphs() for node in graph.nodes if folder.fold(node)]
        folder.finish()
        return PassResult(tuple(changed))


class _Folder:
    def __init__(self, model: Model) -> None:
        self._model = model
        self._editor = Editor(model)
        self._constants: dict[int, Constant | None] = {}
        self._unread: list[Node] = []

    def fold(self, node: Node) -> bool:
        spec = spec_of(node)
        if not (spec.has_record or (node.op in _READERS and is_standard(node))):
            return False
        limit = _MOST_VALUES if spec.has_record else _MOST_VALUES_BESIDE_LAYERS
        is_folded = False
        for index, tensor in enumerate(list(node.inputs)):
            constant = self._constant(tensor, limit)
            if constant is not None:
                self._unread += tensor.inputs
                replace_input(node, index, constant)
                is_folded = True
        return is_folded

    def finish(self) -> None:
        """Remove what nothing reads any more."""
        while self._unread:
            node = self._unread.pop()
            if not node.outputs or any(self._is_needed(tensor) for tensor in node.outputs):
                continue
            self._unread += [producer for tensor in node.inputs for producer in tensor.inputs]
            self._editor.remove(node)
        self._editor.commit()

    def _is_needed(self, tensor: Tensor) -> bool:
        return bool(tensor.outputs) or self._editor.is_output(tensor) or self._editor.is_body_output(tensor)

    def _constant(self, tensor: Tensor, limit: int) -> Constant | None:
        if not tensor.inputs or resolve_constant(tensor) is not None:
            return None
        if id(tensor) not in self._constants:
            chain = _chain(tensor)
            # A lone Transpose is fused by a rule of its own, which users can switch off.
            is_left = chain is None or [node.op for node in chain] == ["Transpose"]
            self._constants[id(tensor)] = None if chain is None or is_left else self._computed(tensor, chain)
        constant = self._constants[id(tensor)]
        return None if constant is None or math.prod(constant.shape) > limit else constant

    def _computed(self, tensor: Tensor, chain: Sequence[Node]) -> Constant | None:
        try:
            expression = _Expression(chain, tensor, self._model.opset)
            values = expression.evaluate()
        except Exception as error:
            # Whatever the evaluator cannot do, the runtime does when the model runs; the layer then says why it stays.
            logger.info("'%s' is not folded: %s", tensor.name, error)
            return None
        lazy = DerivedValues(list(values.shape), values.dtype, expression.evaluate)
        return self._model.add_constant(f"{tensor.name}.folded", lazy)


def _chain(tensor: Tensor) -> list[Node] | None:
    """The nodes that make `tensor` from constants, in order; None where something else takes part."""
    chain: list[Node] = []
    seen: set[int] = set()

    def visit(wanted: Tensor) -> bool:
        if wanted.is_empty() or isinstance(wanted, Constant):
            return True
        producer = wanted.inputs[0] if wanted.inputs else None
        if producer is None:
            return False
        if id(producer) in seen:
            return True
        if not _is_foldable(producer) or len(seen) >= _LONGEST:
            return False
        seen.add(id(producer))
        if not all(visit(entry) for entry in producer.inputs):
            return False
        chain.append(producer)
        return True

    return chain if visit(tensor) else None


def _is_foldable(node: Node) -> bool:
    if not is_standard(node) or node.origin is None:
        return False
    # Standardized weights (Qiao et al. 2019): normalized by their own statistics as a batch is in training.
    return node.op in FOLDED or (node.op == "BatchNormalization" and node.attrs.get("training_mode") == 1)


class _Expression:
    """Nodes over constants as a model of its own, which stays true when the graph goes on changing."""

    def __init__(self, nodes: Sequence[Node], result: Tensor, opset: int) -> None:
        self._leaves = {tensor.name: tensor for node in nodes for tensor in node.inputs if isinstance(tensor, Constant)}
        inputs = [
            helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(leaf.dtype), leaf.shape)
            for name, leaf in self._leaves.items()
        ]
        outputs = [helper.make_empty_tensor_value_info(result.name)]
        graph = helper.make_graph([_proto(node) for node in nodes], "constants", inputs, outputs)
        self._model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)])

    def evaluate(self) -> Array:
        """The values, by onnx's own reference implementation."""
        feeds = {name: constant_array(leaf) for name, leaf in self._leaves.items()}
        (values,) = ReferenceEvaluator(self._model).run(None, feeds)
        return np.asarray(values)


def _proto(node: Node) -> NodeProto:
    if node.origin is None:
        raise TypeError(f"'{node.name}' is no node of the source")
    proto = NodeProto()
    proto.CopyFrom(node.origin)
    del proto.input[:]
    proto.input.extend(tensor.name for tensor in node.inputs)
    return proto
