"""Find the layers that can be quantized, and say of every other candidate why not."""

from __future__ import annotations

import math
from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass, replace

from amct_onnx.graph.channels import Channels
from amct_onnx.graph.functions import functions_with_layers
from amct_onnx.graph.model import Model
from amct_onnx.graph.op_table import (
    PRODUCT_RULES,
    OpSpec,
    Rule,
    is_standard,
    multiplies_computed,
    resolve_constant,
    spec_of,
)
from amct_onnx.graph.parts import Constant, Node, Tensor
from amct_onnx.passes.base import Refusal
from amct_onnx.passes.recurrent import RecurrentLayer, recurrent_layer


@dataclass(frozen=True)
class Layer:
    """One quantizable layer.

    Attributes:
        node: the Conv, Gemm, MatMul or AveragePool node.
        spec: its row of the operator table.
        weight: its weight constant, None for AveragePool and for products of two computed tensors.
        bias: its bias constant, None when it has none.
        bias_add: the Add behind a MatMul that adds the bias.
        in_body: whether it lies inside a control-flow body, which runs many times or never.
    """

    node: Node
    spec: OpSpec
    weight: Constant | None
    bias: Constant | None
    bias_add: Node | None = None
    in_body: bool = False

    @property
    def name(self) -> str:
        """The layer's name, which is its key in a record."""
        return str(self.node.name)

    @property
    def op_type(self) -> str:
        """ONNX operator type."""
        return str(self.node.op)

    @property
    def activation(self) -> Tensor:
        """The data input."""
        return self.node.inputs[0]

    @property
    def second(self) -> Tensor | None:
        """The second factor of a product of two computed tensors, which takes the weight's place; else None."""
        return self.node.inputs[1] if self.weight is None and self.spec.weight is not None else None

    @property
    def output(self) -> Tensor:
        """The layer's result, its bias included."""
        return (self.bias_add or self.node).outputs[0]

    @property
    def out_channels(self) -> Channels:
        """Where the output channels lie in the weight."""
        return self.spec.out_channels(self.node, self._weight_shape)

    @property
    def in_channels(self) -> Channels:
        """Where the input channels lie in the weight."""
        return self.spec.in_channels(self.node, self._weight_shape)

    @property
    def channels_out(self) -> int | None:
        """Number of output channels, None without weights."""
        return None if self.weight is None else self.out_channels.count

    @property
    def channels_in(self) -> int | None:
        """Number of input channels over all groups, None without weights."""
        return None if self.weight is None else self.in_channels.count

    @property
    def has_batched_weight(self) -> bool:
        """Whether it multiplies with several matrices, for which runtimes have no scale per column."""
        return self.op_type == "MatMul" and self.weight is not None and len(self.weight.shape) > 2

    @property
    def weight_bits(self) -> frozenset[int]:
        """Widths its weight can be quantized to; two 4-bit integers share a byte along the input channels."""
        paired = self.weight is not None and self.in_channels.count % 2 == 0 and self.node.attrs.get("group", 1) == 1
        return self.spec.weight_bits if paired else self.spec.weight_bits - {4}

    @property
    def _weight_shape(self) -> tuple[int, ...]:
        if self.weight is None:
            raise TypeError(f"{self.op_type} has no weight")
        return tuple(int(size) for size in self.weight.shape)


@dataclass(frozen=True)
class Survey:
    """All candidates of a model: the layers to quantize, the recurrent ones apart, and the refusals."""

    layers: tuple[Layer, ...]
    refusals: tuple[Refusal, ...]
    recurrent: tuple[RecurrentLayer, ...] = ()

    @property
    def all_layers(self) -> tuple[Layer | RecurrentLayer, ...]:
        """Every layer that can be quantized."""
        return (*self.layers, *self.recurrent)

    def outside_bodies(self) -> Survey:
        """The same with the layers inside control-flow bodies refused, for those who cannot see into bodies."""
        inside = [Refusal(layer.name, layer.op_type, *IN_BODY) for layer in self.all_layers if layer.in_body]
        return Survey(
            tuple(layer for layer in self.layers if not layer.in_body),
            (*self.refusals, *inside),
            tuple(layer for layer in self.recurrent if not layer.in_body),
        )


IN_BODY = (
    "it lies inside a control-flow body, where only observers see what it reads",
    "pip install onnxruntime-extensions",
)


_IN_FUNCTION = (
    "it is a function of the model's own that holds layers, and cannot be inlined (another operator set, or overloads)",
    "inline the model's functions with onnx.inliner.inline_local_functions",
)


_PRODUCT_IN_BODY = (
    "both inputs are computed at run time, inside a control-flow body, where only first inputs are watched",
    "none; it stays float",
)


def locate_layers(model: Model, skip: Mapping[str, str] | None = None, *, products: Container[str] = ()) -> Survey:
    """Survey `model` in graph order.

    Args:
        model: named and fused.
        skip: names of layers to leave float -> why.
        products: names of nodes that are layers even where they multiply two computed tensors.
    """
    skipped = skip or {}
    outputs = model.output_ids()
    layers: list[Layer] = []
    refusals: list[Refusal] = []
    recurrent: list[RecurrentLayer] = []
    functions = functions_with_layers(model.proto)
    for graph in model.graphs():
        in_body = graph is not model.graph
        # A body may not run at all, or many times: what lies in one gives no bias to a layer outside.
        here = {id(node) for node in graph.nodes}
        for node in graph.nodes:
            spec = spec_of(node)
            if (node.domain or "", node.op) in functions:
                refusals.append(Refusal(node.name, node.op, *_IN_FUNCTION))
                continue
            if not spec.has_record:
                if spec.stays_float is not None and spec.stays_float.applies(node):
                    rule = spec.stays_float
                    refusals.append(Refusal(node.name, node.op, rule.reason, rule.remedy))
                continue
            is_product = node.name in products and multiplies_computed(node)
            refusal = _refuse(node, PRODUCT_RULES if is_product else spec.rules, skipped)
            if refusal is None and is_product and in_body:
                refusal = Refusal(node.name, node.op, *_PRODUCT_IN_BODY)
            if refusal is not None:
                refusals.append(refusal)
            elif spec.gates:
                recurrent.append(recurrent_layer(node, in_body=in_body))
            else:
                layers.append(replace(_layer(node, spec, outputs, here), in_body=in_body))
    return Survey(tuple(layers), tuple(refusals), tuple(recurrent))


def _refuse(node: Node, rules: Iterable[Rule], skipped: Mapping[str, str]) -> Refusal | None:
    if node.name in skipped:
        return Refusal(node.name, node.op, skipped[node.name])
    for rule in rules:
        if rule.applies(node):
            return Refusal(node.name, node.op, rule.reason, rule.remedy)
    return None


def _layer(node: Node, spec: OpSpec, outputs: set[int], here: set[int]) -> Layer:
    weight = None if spec.weight is None else resolve_constant(node.inputs[spec.weight])
    if node.op == "MatMul" and weight is not None:
        add, bias = _matmul_bias(node, weight, outputs, here)
        return Layer(node, spec, weight, bias, add)
    has_bias = spec.bias is not None and len(node.inputs) > spec.bias and not node.inputs[spec.bias].is_empty()
    return Layer(node, spec, weight, resolve_constant(node.inputs[spec.bias]) if has_bias else None)


def _matmul_bias(
    node: Node, weight: Constant, outputs: set[int], here: set[int]
) -> tuple[Node | None, Constant | None]:
    """The Add that gives a MatMul its bias: its only reader, adding a constant per channel, in either order."""
    product = node.outputs[0]
    if len(product.outputs) != 1 or id(product) in outputs:
        return None, None
    add = product.outputs[0]
    if id(add) not in here or add.op != "Add" or not is_standard(add) or len(add.inputs) != 2:
        return None, None
    other = add.inputs[1] if add.inputs[0] is product else add.inputs[0]
    bias = resolve_constant(other)
    channels = int(weight.shape[-1])
    if bias is None or not bias.shape or math.prod(bias.shape) != channels or bias.shape[-1] != channels:
        return None, None
    return add, bias
