"""Decide which tensors carry a QuantizeLinear/DequantizeLinear pair, so that a runtime finds integer kernels.

A layer's data input always carries one. Beyond that a pair pays where it lets a node run on integers, and costs
accuracy where it does not. So two sweeps: forward over the graph, which nodes *could* run on integers, given that
their inputs do; backward, which of them hand their result to something that does. Convolutions and average pooling
have an integer kernel only when their result is quantized, too; matrix products do without.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from amct_onnx.graph.model import Model
from amct_onnx.graph.op_table import (
    Kernel,
    data_inputs,
    is_clamp,
    kernel_of,
    multiplies_computed,
    resolve_constant,
    spec_of,
)
from amct_onnx.graph.parts import Constant, Node, Tensor
from amct_onnx.passes.locate import Layer

NEEDS_OUTPUT_PAIR = frozenset({"Conv", "AveragePool"})


@dataclass(frozen=True)
class Placement:
    """Tensors that carry a pair besides the layers' data inputs.

    Attributes:
        tensors: names of computed tensors, in graph order.
        constants: names of constant operands (Add, Mul, Concat) that are stored as integers.
    """

    tensors: tuple[str, ...]
    constants: tuple[str, ...]


def place_pairs(
    model: Model, layers: Sequence[Layer], *, products: bool = True, keep_float: Collection[str] = ()
) -> Placement:
    """Choose the pairs of a prepared model's main graph.

    Args:
        model: named and fused.
        layers: the layers that will be quantized.
        products: whether products of two computed tensors (attention) are to run on integers as well.
        keep_float: names of nodes that are not to run on integers.
    """
    return _Sweep(model, layers, products=products, keep_float=keep_float).placement()


def runs_on_integers(layer: Layer, bits: int) -> bool:
    """Whether the QDQ form has an integer kernel for a layer with activations of this width."""
    return bits == 8 and kernel_of(layer.node) is not Kernel.FLOAT


def keeps_scale(node: Node) -> bool:
    """Whether the node's output may share the scale of its first input without loss.

    True where values are only moved about; for MaxPool where nothing is negative, so that both ranges agree.
    """
    if kernel_of(node) is not Kernel.SAME_SCALE:
        return False
    return node.op != "MaxPool" or output_bounds(node.inputs[0])[0] >= 0


def scale_source(tensor: Tensor) -> Tensor:
    """The tensor whose scale `tensor` shares: back through nodes that keep it."""
    while tensor.inputs and keeps_scale(tensor.inputs[0]):
        tensor = tensor.inputs[0].inputs[0]
    return tensor


def output_bounds(tensor: Tensor) -> tuple[float, float]:
    """Range of values that the producer of a tensor can emit at all."""
    while tensor.inputs:
        producer = tensor.inputs[0]
        spec = spec_of(producer)
        if spec.kernel is not Kernel.SAME_SCALE:
            return spec.bounds(producer)
        tensor = producer.inputs[0]
    return -math.inf, math.inf


def is_product(node: Node) -> bool:
    """Whether the node multiplies two computed float matrices."""
    return multiplies_computed(node) and _are_float(node.inputs)


class _Sweep:
    def __init__(self, model: Model, layers: Sequence[Layer], *, products: bool, keep_float: Collection[str]) -> None:
        self._products = products
        self._keep_float = keep_float
        self._outputs = model.output_ids()
        self._elsewhere = model.body_node_ids()
        self._nodes = list(model.graph.nodes)
        self._layers = {id(layer.node): layer for layer in layers}
        self._bias_adds = {id(layer.bias_add) for layer in layers if layer.bias_add is not None}
        self._inputs = {id(layer.activation) for layer in layers}
        self._able: dict[int, Node] = {}
        self._carried: set[int] = set(self._inputs)
        self._wanted: set[int] = set(self._inputs)
        self._paired: dict[int, Tensor] = {}
        self._constants: dict[int, Constant] = {}

    def placement(self) -> Placement:
        for node in self._nodes:
            self._forward(node)
        for node in reversed(self._nodes):
            self._backward(node)
        in_order = [tensor for node in self._nodes for tensor in node.outputs if id(tensor) in self._paired]
        tensors = [tensor.name for tensor in in_order if id(tensor) not in self._inputs]
        constants = [self._constants[key].name for key in self._constants]
        return Placement(tuple(tensors), tuple(dict.fromkeys(reversed(constants))))

    def _forward(self, node: Node) -> None:
        """Mark what could be carried as integers."""
        if id(node) in self._bias_adds or node.name in self._keep_float:
            return
        layer = self._layers.get(id(node))
        if layer is not None:
            self._carried.add(id(self._clamped(layer.output)))
            return
        if self._is_product(node):
            self._able[id(node)] = node
            self._carried.add(id(self._clamped(node.outputs[0])))
            return
        kernel = kernel_of(node)
        if kernel in (Kernel.FLOAT, Kernel.COMPUTE) or not node.outputs:
            return
        if kernel is Kernel.SAME_SCALE and not keeps_scale(node):
            return
        operands = data_inputs(node)
        computed = [tensor for tensor in operands if resolve_constant(tensor) is None]
        if computed and all(id(tensor) in self._carried for tensor in computed) and _are_float(operands):
            self._able[id(node)] = node
            self._carried.add(id(self._result(node)))
            self._carried.add(id(node.outputs[0]))

    def _backward(self, node: Node) -> None:
        """Keep what feeds an integer kernel."""
        layer = self._layers.get(id(node))
        if layer is not None:
            result = self._clamped(layer.output)
            if node.op in NEEDS_OUTPUT_PAIR or id(result) in self._wanted:
                self._paired[id(result)] = result
            return
        if id(node) not in self._able:
            return
        result = self._result(node)
        if self._is_product(node):
            self._want_operands(node.inputs)
            if id(result) in self._wanted:
                self._paired[id(result)] = result
            return
        if id(result) not in self._wanted:
            return
        kernel = kernel_of(node)
        self._paired[id(result)] = result
        if kernel is Kernel.ELEMENTWISE:
            self._want_operands(data_inputs(node))
        elif kernel is Kernel.SAME_SCALE or self._completes_kernel(node):
            self._want_operands([node.inputs[0]])

    def _want_operands(self, operands: Iterable[Tensor]) -> None:
        for tensor in operands:
            constant = resolve_constant(tensor)
            if constant is not None:
                self._constants[id(tensor)] = tensor
            else:
                self._wanted.add(id(tensor))
                self._paired[id(tensor)] = tensor

    def _completes_kernel(self, node: Node) -> bool:
        """Whether a pair before `node` lets the producer run on integers; one behind a merged Relu does so already."""
        tensor = node.inputs[0]
        producers = [producer for producer in tensor.inputs if id(producer) in self._able]
        is_merged = self._clamped(tensor) is node.outputs[0]
        return not is_merged and any(kernel_of(producer) is Kernel.ELEMENTWISE for producer in producers)

    def _is_product(self, node: Node) -> bool:
        return self._products and is_product(node)

    def _result(self, node: Node) -> Tensor:
        is_kernel = kernel_of(node) in (Kernel.ELEMENTWISE, Kernel.COMPUTE)
        return self._clamped(node.outputs[0]) if is_kernel else node.outputs[0]

    def _clamped(self, tensor: Tensor) -> Tensor:
        """The tensor behind a Relu or Clip that is the only reader of `tensor`; else `tensor` itself."""
        if id(tensor) in self._outputs or len(tensor.outputs) != 1:
            return tensor
        reader = tensor.outputs[0]
        return reader.outputs[0] if is_clamp(reader) and id(reader) not in self._elsewhere else tensor


def _are_float(tensors: Iterable[Tensor]) -> bool:
    return all(tensor.dtype is None or np.dtype(tensor.dtype) == np.float32 for tensor in tensors)
