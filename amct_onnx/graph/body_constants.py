"""Small constants of outer graphs, put into the bodies that read them: inference looks for values in a body alone."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

from onnx import GraphProto, TensorProto

from amct_onnx.graph.protos import node_bodies

_MOST = 64
"""Entries; longer tensors are no shapes."""
_WHOLE = frozenset({TensorProto.INT32, TensorProto.INT64})


def lend_constants(graph: GraphProto, outer: Mapping[str, TensorProto] | None = None) -> None:
    """Give bodies copies of the whole numbers that they read from outside, as initializers of the same name.

    Args:
        graph: of a model that is only looked at; changed.
        outer: constants of the graphs around it.
    """
    known = {**(outer or {}), **dict(_constants(graph))}
    for node in graph.node:
        for body in node_bodies(node):
            own = {
                *(info.name for info in body.input),
                *(tensor.name for tensor in body.initializer),
                *(name for inner in body.node for name in inner.output),
            }
            seen = {name: tensor for name, tensor in known.items() if name not in own}
            read = {name for inner in body.node for name in inner.input}
            lend_constants(body, seen)
            for name in sorted(read & seen.keys()):
                copy = body.initializer.add()
                copy.CopyFrom(seen[name])
                copy.name = name


def _constants(graph: GraphProto) -> Iterator[tuple[str, TensorProto]]:
    given = [(tensor.name, tensor) for tensor in graph.initializer]
    for node in graph.node:
        if node.op_type == "Constant":
            given.extend((node.output[0], attribute.t) for attribute in node.attribute if attribute.name == "value")
    fed = {info.name for info in graph.input}
    for name, tensor in given:
        if name not in fed and tensor.data_type in _WHOLE and math.prod(tensor.dims) <= _MOST:
            yield name, tensor
