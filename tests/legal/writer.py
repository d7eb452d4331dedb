"""Writes a model node by node, in one of the many legal ways to say the same thing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np
import onnx
from hypothesis import assume
from hypothesis import strategies as st
from onnx import GraphProto, ModelProto, NodeProto, TensorProto, ValueInfoProto, helper, numpy_helper

from tests.models import Array

T = TypeVar("T")
TYPES = {"float32": TensorProto.FLOAT, "float16": TensorProto.FLOAT16, "float64": TensorProto.DOUBLE}
NODE_NAMES: dict[str, Callable[[int], str]] = {
    "plain": lambda index: f"n{index}",
    "unnamed": lambda _index: "",
    "doubled": lambda index: f"same{index % 2}",
    "prefixes": lambda index: "a" * (index % 3 + 1) + ".quant" * (index // 3),
    "odd": lambda index: f"层 {index}/conv:0",
    "some": lambda index: "" if index % 2 else f"Conv_{index}",
}
TENSOR_NAMES: dict[str, Callable[[int], str]] = {
    "plain": lambda index: f"t{index}",
    "numbers": lambda index: str(index),
    "odd": lambda index: f"/层 {index}/out:0",
    "ours": lambda index: f"t.quant{index}_quantized",
}


@dataclass(frozen=True)
class Value:
    """A tensor with the shape it has on the data of the test."""

    name: str
    shape: tuple[int, ...]

    @property
    def rank(self) -> int:
        return len(self.shape)


@dataclass
class Writer:
    """A graph in the making.

    Attributes:
        draw: hypothesis' own.
        opset: version of the operator set.
        dtype: float type of data and weights.
        names: how nodes and tensors are called.
        constants: how constants are stored.
        rng: values of constants.
    """

    draw: Callable[[st.SearchStrategy[Any]], Any]
    opset: int
    dtype: np.dtype[Any]
    names: tuple[str, str]
    constants: str
    rng: np.random.Generator
    nodes: list[NodeProto] = field(default_factory=list)
    initializers: list[TensorProto] = field(default_factory=list)
    values: list[Value] = field(default_factory=list)
    weights: dict[tuple[int, ...], str] = field(default_factory=dict)
    arrays: dict[str, Array] = field(default_factory=dict)
    counter: int = 0

    def pick(self, choices: Sequence[T]) -> T:
        return self.draw(st.sampled_from(choices))

    def flag(self) -> bool:
        return bool(self.draw(st.booleans()))

    def tensor_name(self) -> str:
        self.counter += 1
        return TENSOR_NAMES[self.names[1]](self.counter)

    def add(self, op: str, inputs: Sequence[str | Value], outputs: int = 1, **attributes: Any) -> Value:
        """A node; its first result, others are left unread."""
        texts = [entry.name if isinstance(entry, Value) else entry for entry in inputs]
        made = [self.tensor_name() for _ in range(outputs)]
        name = NODE_NAMES[self.names[0]](self.counter)
        node = helper.make_node(op, texts, made, name=name, **attributes)
        self.nodes.append(node)
        shapes = self.shapes_of(node)
        self.values.append(Value(made[0], shapes[0]))
        return self.values[-1]

    def shapes_of(self, node: NodeProto) -> list[tuple[int, ...]]:
        """Shapes of a node's results as onnx infers them from what it reads."""
        known = [value for value in self.values if value.name in node.input]
        inputs = [helper.make_tensor_value_info(value.name, self.type_of(value.name), value.shape) for value in known]
        outputs = [ValueInfoProto(name=name) for name in node.output]
        constants = [numpy_helper.from_array(self.arrays[name], name) for name in set(node.input) & self.arrays.keys()]
        graph = helper.make_graph([node], "g", inputs, outputs, constants)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", self.opset)], ir_version=8)
        inferred = onnx.shape_inference.infer_shapes(model, strict_mode=True)
        shapes = [_shape(info) for info in inferred.graph.output]
        assume(all(shapes[0]))
        return shapes

    def type_of(self, _name: str) -> int:
        return TYPES[self.dtype.name]

    def constant(self, array: Array) -> str:
        """A constant, stored in the way of this model."""
        way = self.pick(["initializer", "node", "identity"]) if self.constants == "mixed" else self.constants
        name = self.tensor_name()
        self.arrays[name] = np.asarray(array)
        tensor = numpy_helper.from_array(self.arrays[name], name)
        if way == "node":
            self.nodes.append(helper.make_node("Constant", [], [name], value=tensor))
        else:
            self.initializers.append(tensor)
        return name

    def weight(self, *shape: int, low: float = -1.0) -> str:
        """Random weights; now and then those that another node has, or behind an Identity."""
        if shape in self.weights and self.pick([False, False, True]):
            return self.weights[shape]
        size = max(1, int(np.prod(shape[1:])))
        array = self.rng.uniform(low, 1, shape) / np.sqrt(size)
        name = self.constant(array.astype(self.dtype))
        if low < 0:
            self.weights[shape] = name
        if self.constants == "mixed" and self.pick([False, False, False, True]):
            node = helper.make_node("Identity", [name], [self.tensor_name()])
            self.nodes.append(node)
            self.arrays[node.output[0]] = self.arrays[name]
            return str(node.output[0])
        return name

    def graph(self, inputs: Sequence[ValueInfoProto], outputs: Sequence[ValueInfoProto]) -> GraphProto:
        return helper.make_graph(self.nodes, "g", inputs, outputs, self.initializers)


def _shape(info: ValueInfoProto) -> tuple[int, ...]:
    return tuple(dim.dim_value for dim in info.type.tensor_type.shape.dim)


def declared(model: ModelProto) -> list[bytes]:
    """Inputs and outputs as a caller sees them, without constants that old models list as inputs."""
    stored = {entry.name for entry in model.graph.initializer}
    infos = [*(info for info in model.graph.input if info.name not in stored), *model.graph.output]
    return [info.SerializeToString(deterministic=True) for info in infos]
