"""Layers of float16 and float64, and what lies between them, compute in float32: the type all other passes know."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from onnx import TensorProto

from amct_onnx.graph.edit import Editor, replace_input, replace_output
from amct_onnx.graph.model import Graph, Model, constant_array
from amct_onnx.graph.op_table import Kernel, is_standard, known_constant, resolve_constant, spec_of
from amct_onnx.graph.parts import Constant, Node, Tensor
from amct_onnx.graph.weights import Array, DerivedValues
from amct_onnx.passes.base import PassResult

LIFTED: Mapping[np.dtype[np.generic], int] = {
    np.dtype(np.float16): TensorProto.FLOAT16,
    np.dtype(np.float64): TensorProto.DOUBLE,
}
_FLOAT32 = np.dtype(np.float32)
_KERNELS = frozenset({Kernel.ELEMENTWISE, Kernel.SAME_SCALE, Kernel.CLAMP, Kernel.FUNCTION})
_MORE_INPUTS: Mapping[str, tuple[int, ...]] = {
    "BatchNormalization": (0, 1, 2, 3, 4),
    "Sub": (0, 1),
    "Div": (0, 1),
    "Clip": (0, 1, 2),
}
"""Inputs of the layer's element type, for operators of which the table does not say so."""


@dataclass(frozen=True)
class LiftResult(PassResult):
    """What was lifted.

    Attributes:
        sources: name of a float32 tensor -> name of the source's tensor whose values it holds, maybe its own.
    """

    sources: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class LiftFloats:
    """Every region of simple operators around a layer with weights, in float16 or float64, becomes float32.

    A Cast stands wherever a tensor enters or leaves the region, so that everything outside, the interface included,
    keeps its type. Widening float16 loses nothing; a float64 weight is rounded to float32.
    """

    def run(self, model: Model) -> LiftResult:
        """Lift the regions of the main graph and of every body."""
        work = _Lift(model)
        for graph in model.graphs():
            work.graph(graph)
        work.editor.commit()
        return LiftResult(tuple(work.changed), sources=work.sources)


class _Lift:
    def __init__(self, model: Model) -> None:
        self.editor = Editor(model)
        self.changed: list[str] = []
        self.sources: dict[str, str] = {}
        self._model = model
        self._constants: dict[int, Constant] = {}

    def graph(self, graph: Graph) -> None:
        lifted = _regions(graph)
        entered: dict[int, Tensor] = {}
        for node in graph.nodes:
            kind = lifted.get(id(node))
            if kind is not None:
                self._inputs(node, kind, lifted, entered)
                self._output(graph, node, kind, lifted)
                self.changed.append(node.name)

    def _inputs(
        self, node: Node, kind: np.dtype[np.generic], lifted: Mapping[int, object], entered: dict[int, Tensor]
    ) -> None:
        for index in _float_inputs(node):
            tensor = node.inputs[index]
            if resolve_constant(tensor) is not None:
                replace_input(node, index, self._constant(tensor))
            elif not (tensor.inputs and id(tensor.inputs[0]) in lifted):
                if id(tensor) not in entered:
                    entered[id(tensor)] = self._new(tensor)
                    cast = _cast(f"{tensor.name}.to_float32", tensor, entered[id(tensor)], TensorProto.FLOAT)
                    self.editor.insert_before(node, [cast])
                    tensor.dtype = kind
                replace_input(node, index, entered[id(tensor)])

    def _output(self, graph: Graph, node: Node, kind: np.dtype[np.generic], lifted: Mapping[int, object]) -> None:
        tensor = node.outputs[0]
        inside = [reader for reader in tensor.outputs if id(reader) in lifted]
        is_public = self.editor.is_output(tensor) or self.editor.is_body_output(tensor)
        if len(inside) == len(tensor.outputs) and not is_public:
            tensor.dtype = _FLOAT32
            graph.retyped.add(tensor.name)
            self.sources[tensor.name] = tensor.name
            return
        wide = self._new(tensor)
        replace_output(node, 0, wide)
        self.editor.move_consumers(tensor, wide, inside)
        self.editor.insert_after(node, [_cast(f"{tensor.name}.from_float32", wide, tensor, LIFTED[kind])])
        tensor.dtype = kind

    def _constant(self, tensor: Tensor) -> Constant:
        """The constant in float32, one for all its readers."""
        constant = known_constant(tensor)
        if id(constant) not in self._constants:

            def widened() -> Array:
                return constant_array(constant).astype(np.float32)

            values = DerivedValues([int(size) for size in constant.shape], _FLOAT32, widened)
            self._constants[id(constant)] = self._model.add_constant(f"{tensor.name}.float32", values)
        return self._constants[id(constant)]

    def _new(self, tensor: Tensor) -> Tensor:
        wide = self._model.new_tensor(f"{tensor.name}.float32", _FLOAT32)
        wide.shape = tensor.shape
        self.sources[wide.name] = tensor.name
        return wide


def _cast(name: str, source: Tensor, result: Tensor, kind: int) -> Node:
    return Node("Cast", name, {"to": kind}, [source], [result])


def _regions(graph: Graph) -> dict[int, np.dtype[np.generic]]:
    """``id`` of every node to lift -> its element type: what is connected with a layer through simple operators."""
    kinds = {id(node): kind for node in graph.nodes if (kind := _lifted_kind(node)) is not None}
    region: dict[int, int] = {key: key for key in kinds}

    def root(key: int) -> int:
        while region[key] != key:
            region[key] = region[region[key]]
            key = region[key]
        return key

    with_layer: list[int] = []
    for node in graph.nodes:
        if id(node) not in kinds:
            continue
        for index in _float_inputs(node):
            producers = node.inputs[index].inputs
            if producers and id(producers[0]) in kinds:
                region[root(id(producers[0]))] = root(id(node))
        if _is_layer(node):
            with_layer.append(id(node))
    roots = {root(key) for key in with_layer}
    return {key: kind for key, kind in kinds.items() if root(key) in roots}


def _lifted_kind(node: Node) -> np.dtype[np.generic] | None:
    """The element type of a node that can be lifted."""
    spec = spec_of(node)
    is_simple = spec.has_record or spec.kernel in _KERNELS or node.op in _MORE_INPUTS
    if not is_simple or not is_standard(node) or len(node.outputs) != 1:
        return None
    tensors = [node.inputs[index] for index in _float_inputs(node)]
    known = [_type_of(tensor) for tensor in (*tensors, *node.outputs)]
    found = {kind for kind in known if kind is not None}
    kind = found.pop() if len(found) == 1 else None
    return kind if kind in LIFTED else None


def _type_of(tensor: Tensor) -> np.dtype[np.generic] | None:
    constant = resolve_constant(tensor)
    dtype = tensor.dtype if constant is None else constant.dtype
    return None if dtype is None else np.dtype(dtype)


def _float_inputs(node: Node) -> list[int]:
    """Inputs that have the element type of the node's result."""
    spec = spec_of(node)
    indexes = _MORE_INPUTS.get(node.op) or spec.data or range(len(node.inputs))
    named = {*indexes, *(index for index in (spec.weight, spec.bias) if index is not None)}
    return [index for index in sorted(named) if index < len(node.inputs) and not node.inputs[index].is_empty()]


def _is_layer(node: Node) -> bool:
    spec = spec_of(node)
    if not spec.has_record or spec.weight is None:
        return False
    return len(node.inputs) > spec.weight and resolve_constant(node.inputs[spec.weight]) is not None
