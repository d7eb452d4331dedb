"""Builders of small models, and the two things tests do with them: run them and look at them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
from numpy.typing import NDArray
from onnx import GraphProto, ModelProto, NodeProto, numpy_helper, parser

from amct_onnx.graph import BuiltModel, Model, Node, import_model, name_nodes

Array = NDArray[Any]

_NAMED = re.compile(r"(?<!\w)\[([A-Za-z]\w*)\]\s*(\w+)")


def parse(
    nodes: str,
    inputs: str = "float[2,3] x",
    outputs: str = "float[2,3] y",
    weights: Mapping[str, Array] | None = None,
    *,
    opset: int = 17,
    domains: str = "",
    functions: str = "",
) -> ModelProto:
    """A model from the text of its nodes, with `weights` as initializers.

    Args:
        nodes: statements in ONNX's text form, a node's name before it in brackets.
        inputs: typed graph inputs, separated by commas.
        outputs: typed graph outputs.
        weights: initializer name -> values.
        opset: version of the default domain; 0 leaves it out.
        domains: further entries of opset_import, like ``"custom": 1``.
        functions: text of model functions.
    """
    imports = ", ".join(entry for entry in (f'"": {opset}' if opset else "", domains) if entry)
    plain = _NAMED.sub(r"\2", nodes)
    text = f"<ir_version: 8, opset_import: [{imports}]> g ({inputs}) => ({outputs}) {{ {plain} }} {functions}"
    model = parser.parse_model(text)
    _set_names(model.graph, {output: name for name, output in _NAMED.findall(nodes)})
    model.graph.initializer.extend(numpy_helper.from_array(values, name) for name, values in (weights or {}).items())
    return model


def _set_names(graph: GraphProto, names: Mapping[str, str]) -> None:
    """Name nodes by their first output; the parser of older onnx does not read names."""
    for node in graph.node:
        if node.output[0] in names:
            node.name = names[node.output[0]]
        for attribute in node.attribute:
            _set_names(attribute.g, names)


def run(model: ModelProto | BuiltModel | Path, feeds: Mapping[str, Array], *, optimized: bool = True) -> list[Array]:
    """All outputs on one feed, by onnxruntime."""
    options = ort.SessionOptions()
    options.log_severity_level = 3
    if not optimized:
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    proto = model.to_proto() if isinstance(model, BuiltModel) else model
    source = str(proto) if isinstance(proto, Path) else proto.SerializeToString()
    session = ort.InferenceSession(source, options, providers=["CPUExecutionProvider"])
    return [np.asarray(output) for output in session.run(None, dict(feeds))]


def normal(*shape: int, seed: int = 0) -> NDArray[np.float32]:
    """Float32 values of a standard normal distribution."""
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def imported(proto: ModelProto) -> Model:
    """`proto` as passes get it: imported, every node named."""
    model = import_model(proto)
    name_nodes(model)
    return model


def node_named(model: Model, name: str) -> Node:
    """The node of that name, bodies included."""
    return next(node for graph in model.graphs() for node in graph.nodes if node.name == name)


def summary(nodes: Any) -> list[str]:
    """One line per NodeProto: ``name: op(inputs) -> outputs``."""
    return [_line(node) for node in nodes]


def _line(node: NodeProto) -> str:
    return f"{node.name}: {node.op_type}({', '.join(node.input)}) -> {', '.join(node.output)}"


def initializers(proto: ModelProto) -> dict[str, Array]:
    """Initializer name -> values."""
    return {tensor.name: numpy_helper.to_array(tensor) for tensor in proto.graph.initializer}
