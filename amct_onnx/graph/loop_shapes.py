"""Shapes inside of loops: what a loop carries on has the shape of what it begins with, unless the body changes it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from onnx import GraphProto, ModelProto, NodeProto, TensorShapeProto, ValueInfoProto

from amct_onnx.graph.protos import node_bodies

_DEEPEST = 4
"""Loops in loops; shapes of the inner ones are known when those around them are."""

Infer = Callable[[ModelProto], ModelProto]


@dataclass(frozen=True, eq=False)
class Carried:
    """One value that a body hands to its next run.

    Attributes:
        begins: the tensor that the first run is given.
        taken: the body's input.
        given: the body's output.
    """

    begins: str
    taken: ValueInfoProto
    given: ValueInfoProto


def carried_values(node: NodeProto) -> list[Carried]:
    """What a Loop or Scan carries from run to run; empty for any other node."""
    bodies = list(node_bodies(node))
    if node.domain not in ("", "ai.onnx") or len(bodies) != 1:
        return []
    body = bodies[0]
    if node.op_type == "Loop":
        places = (node.input[2:], body.input[2:], body.output[1:])
    elif node.op_type == "Scan":
        scanned = next((attribute.i for attribute in node.attribute if attribute.name == "num_scan_inputs"), 0)
        states = len(node.input) - scanned
        places = (node.input[:states], body.input[:states], body.output[:states])
    else:
        return []
    # A loop gives more than it carries.
    return [Carried(*found) for found in zip(*places, strict=False)]


def infer_with_loops(light: ModelProto, infer: Infer) -> ModelProto:
    """Infer shapes, those of carried values, which inference leaves out, included.

    Where a body gives a shape other than the one it was given, nothing is said of what it carries.

    Args:
        light: a model without large weights; what it declares of tensors inside of it may be lost.
        infer: what infers shapes elsewhere.
    """
    inferred = infer(light)
    if not any(carried_values(node) for _, node in _scopes(inferred.graph, {})):
        return inferred
    # Each round comes a loop deeper, or back with its results.
    for _ in range(2 * _DEEPEST):
        before = ModelProto()
        before.CopyFrom(inferred)
        _spread(inferred)
        inferred = _inferred_anew(inferred, infer)
        if inferred == before:
            break
    if _forget_what_grows(inferred):
        inferred = _inferred_anew(inferred, infer)
    return inferred


def _inferred_anew(proto: ModelProto, infer: Infer) -> ModelProto:
    """Infer from inputs, those of bodies included, and what loops give: all else that was inferred may be wrong."""
    results = list(_results(proto.graph))
    _forget(proto.graph)
    for graph, info in results:
        known = [one for one in (*graph.output, *graph.value_info) if one.name == info.name]
        for one in known:
            one.CopyFrom(info)
        if not known:
            graph.value_info.append(info)
    return infer(proto)


def _results(graph: GraphProto) -> Iterator[tuple[GraphProto, ValueInfoProto]]:
    """What loops give of values that keep their shape, with the graph in which each stands."""
    for node in graph.node:
        for body in node_bodies(node):
            yield from _results(body)
        carried = carried_values(node)
        if not all(map(_stays, carried)):
            continue
        for one, name in zip(carried, node.output, strict=False):
            if name and _has_shape(one.given):
                info = ValueInfoProto(name=name)
                info.type.CopyFrom(one.given.type)
                yield graph, info


Scope = Mapping[str, TensorShapeProto]


def _scopes(graph: GraphProto, outer: Scope) -> Iterator[tuple[Scope, NodeProto]]:
    """Every node with the shapes that are known where it stands."""
    scope = {**outer, **_shapes(graph)}
    for node in graph.node:
        yield scope, node
        for body in node_bodies(node):
            yield from _scopes(body, scope)


def _shapes(graph: GraphProto) -> dict[str, TensorShapeProto]:
    found = {tensor.name: _shape(list(tensor.dims)) for tensor in graph.initializer}
    for info in (*graph.input, *graph.output, *graph.value_info):
        if _has_shape(info):
            found[info.name] = info.type.tensor_type.shape
    return found


def _shape(sizes: list[int]) -> TensorShapeProto:
    return TensorShapeProto(dim=[TensorShapeProto.Dimension(dim_value=size) for size in sizes])


def _has_shape(info: ValueInfoProto) -> bool:
    return info.type.HasField("tensor_type") and info.type.tensor_type.HasField("shape")


def _spread(proto: ModelProto) -> None:
    """Give every carried value the shape that it begins with."""
    for scope, node in list(_scopes(proto.graph, {})):
        for carried in carried_values(node):
            if carried.taken.type.HasField("tensor_type"):
                taken, shape = carried.taken.type.tensor_type, scope.get(carried.begins)
                taken.ClearField("shape")
                if shape is not None:
                    taken.shape.CopyFrom(shape)


def _forget(graph: GraphProto, *, is_body: bool = False) -> None:
    """Leave out what was inferred and declared of tensors, all but inputs and the outputs of the model."""
    del graph.value_info[:]
    for info in graph.output if is_body else ():
        if info.type.HasField("tensor_type"):
            info.type.tensor_type.ClearField("shape")
    for node in graph.node:
        for body in node_bodies(node):
            _forget(body, is_body=True)


def _forget_what_grows(proto: ModelProto) -> bool:
    """Say nothing of what bodies carry that change its shape; whether there are any."""
    growing = [node for _, node in _scopes(proto.graph, {}) if not all(map(_stays, carried_values(node)))]
    for node in growing:
        for carried in carried_values(node):
            if carried.taken.type.HasField("tensor_type"):
                carried.taken.type.tensor_type.ClearField("shape")
    return bool(growing)


def _stays(carried: Carried) -> bool:
    """Whether a value has one shape in every run, as far as that is known."""
    taken, given = carried.taken.type, carried.given.type
    if not taken.HasField("tensor_type") or not given.HasField("tensor_type"):
        return True
    return _has_shape(carried.given) and taken.tensor_type.shape == given.tensor_type.shape
