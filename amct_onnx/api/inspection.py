"""What can and cannot be compressed in a model, with reasons, shapes and cost."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from onnx import ModelProto

from amct_onnx.analyse.body_statistics import can_watch
from amct_onnx.analyse.input_shapes import check_input_shapes
from amct_onnx.api.source import Source, blaming_illegal_models, load_source
from amct_onnx.graph import Node, Tensor
from amct_onnx.graph.op_table import resolve_constant, spec_of
from amct_onnx.graph.shapes import infer_shapes
from amct_onnx.passes.base import Refusal
from amct_onnx.passes.locate import Layer, locate_layers
from amct_onnx.passes.recurrent import RECURRENCE, WEIGHT, RecurrentLayer
from amct_onnx.rewrite import prepare

Shape = tuple[int | str | None, ...]


@dataclass(frozen=True)
class NodeFacts:
    """One node that holds weights or that could be quantized.

    Attributes:
        name, op_type: the node.
        input_shape, output_shape: known sizes as int, free ones by name or None; None when the rank is unknown.
        parameters: number of constant values it reads.
        multiply_adds: of one run, None when a shape is unknown (free sizes count as 1).
        quantizable: whether a plan would quantize it.
        reason, remedy: why not.
    """

    name: str
    op_type: str
    input_shape: Shape | None
    output_shape: Shape | None
    parameters: int
    multiply_adds: int | None
    quantizable: bool
    reason: str = ""
    remedy: str = ""


@dataclass(frozen=True)
class Port:
    """An input or output of a model; `dtype` as numpy names it, shape None when unknown."""

    name: str
    dtype: str
    shape: Shape | None


@dataclass(frozen=True)
class Inspection:
    """All facts about one model.

    Attributes:
        opset: version of the default operator set.
        nodes: number of nodes, bodies included.
        inputs: name, element type and shape of what has to be fed.
        outputs: the same of what comes out.
        operators: operator type -> number of nodes.
        facts: the nodes that matter, in graph order.
        fusions: layer -> source nodes that will be folded into it.
    """

    opset: int
    nodes: int
    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]
    operators: dict[str, int]
    facts: tuple[NodeFacts, ...]
    fusions: dict[str, tuple[str, ...]]

    def to_dict(self) -> dict[str, Any]:
        """As plain data."""
        return asdict(self)


def inspect(model: Source, *, input_shapes: Mapping[str, Sequence[int]] | None = None) -> Inspection:
    """Look at a model.

    Args:
        model: path or ModelProto.
        input_shapes: input -> sizes to take for the free ones.

    Raises:
        ModelError: the model cannot be read.
        UsageError: a shape that no input of the model can have.
    """
    proto, base_dir = load_source(model)
    fed = dict(input_shapes or {})
    check_input_shapes(proto, fed)
    with blaming_illegal_models(proto, base_dir):
        return _inspect(proto, base_dir, fed)


def _inspect(proto: ModelProto, base_dir: Path | None, fed: Mapping[str, Sequence[int]]) -> Inspection:
    prepared = prepare(proto, base_dir)
    graph = prepared.model
    shapes = infer_shapes(graph.proto, base_dir, fed)
    shapes.update({name: shapes[source] for name, source in prepared.lifted.items() if source in shapes})
    survey = locate_layers(graph)
    if not can_watch():
        survey = survey.outside_bodies()
    layers = {id(layer.node): layer for layer in survey.all_layers}
    refused = {refusal.node: refusal for refusal in survey.refusals}
    facts: list[NodeFacts] = []
    operators: dict[str, int] = {}
    for body in graph.graphs():
        for node in body.nodes:
            operators[node.op] = operators.get(node.op, 0) + 1
            if id(node) in layers or node.name in refused:
                refusal = refused.get(node.name)
                facts.append(_facts(node, layers.get(id(node)), shapes, refusal))
    initialized = {initializer.name for initializer in proto.graph.initializer}
    return Inspection(
        opset=graph.opset,
        nodes=sum(operators.values()),
        inputs=tuple(_port(tensor, shapes) for tensor in graph.graph.inputs if tensor.name not in initialized),
        outputs=tuple(_port(tensor, shapes) for tensor in graph.graph.outputs),
        operators=dict(sorted(operators.items())),
        facts=tuple(facts),
        fusions=prepared.fused,
    )


def _port(tensor: Tensor, shapes: dict[str, Shape]) -> Port:
    dtype = "" if tensor.dtype is None else str(np.dtype(tensor.dtype))
    return Port(tensor.name, dtype, shapes.get(tensor.name))


def _facts(
    node: Node, layer: Layer | RecurrentLayer | None, shapes: dict[str, Shape], refusal: Refusal | None
) -> NodeFacts:
    first = next((tensor for tensor in node.outputs if not tensor.is_empty()), node.outputs[0])
    output = layer.output if isinstance(layer, Layer) else first
    input_shape, output_shape = (_shape(tensor, shapes) for tensor in (node.inputs[0], output))
    return NodeFacts(
        name=node.name,
        op_type=node.op,
        input_shape=input_shape,
        output_shape=output_shape,
        parameters=_parameters(node),
        multiply_adds=_multiply_adds(node, input_shape, output_shape),
        quantizable=layer is not None,
        reason=refusal.reason if refusal else "",
        remedy=refusal.remedy if refusal else "",
    )


def _shape(tensor: Tensor, shapes: dict[str, Shape]) -> Shape | None:
    """A tensor's shape; tensors that the source does not have may declare theirs."""
    declared = None if tensor.shape is None else tuple(tensor.shape)
    return shapes.get(tensor.name, declared)


def _parameters(node: Node) -> int:
    constants = (resolve_constant(tensor) for tensor in node.inputs)
    return sum(math.prod(constant.shape) for constant in constants if constant is not None)


def _multiply_adds(node: Node, input_shape: Shape | None, output_shape: Shape | None) -> int | None:
    """Output elements times the weights that each reads; of a transposed convolution, input elements.

    A recurrent layer meets all of W and R in each step of each sample.
    """
    spec = spec_of(node)
    if spec.gates:
        found = (resolve_constant(node.inputs[index]) for index in (WEIGHT, RECURRENCE))
        constants = [constant for constant in found if constant is not None]
        if input_shape is None or len(constants) < 2:
            return None
        steps = math.prod(size if isinstance(size, int) else 1 for size in input_shape[:2])
        return steps * sum(math.prod(constant.shape) for constant in constants)
    weight = None if spec.weight is None else resolve_constant(node.inputs[spec.weight])
    counted = input_shape if spec.scatters else output_shape
    if weight is None or counted is None:
        return None
    shape = tuple(int(size) for size in weight.shape)
    channels = spec.in_channels(node, shape) if spec.scatters else spec.out_channels(node, shape)
    per_element = math.prod(shape) // max(1, channels.count)
    return per_element * math.prod(size if isinstance(size, int) else 1 for size in counted)
