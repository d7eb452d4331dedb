"""Shapes of all tensors, without loading a large weight."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import onnx
from onnx import GraphProto, ModelProto, ValueInfoProto

from amct_onnx.graph.body_constants import lend_constants
from amct_onnx.graph.light import lighten
from amct_onnx.graph.loop_shapes import infer_with_loops
from amct_onnx.graph.misjudged import hide_misjudged
from amct_onnx.graph.protos import nested_graphs

Shape = tuple[int | str | None, ...]


def infer_shapes(
    proto: ModelProto, base_dir: Path | None = None, fed: Mapping[str, Sequence[int]] | None = None
) -> dict[str, Shape]:
    """Shape of every tensor of the main graph that inference can tell; free sizes are names or None.

    Models that onnx's inference refuses give what the model itself declares.

    Args:
        proto: the model.
        base_dir: folder of external weights, from which small tensors are read since they may hold shapes.
        fed: input -> shape, to take in place of what the model declares.
    """
    light = _inferred(proto, base_dir, fed or {})
    shapes: dict[str, Shape] = {}
    for info in (*light.graph.value_info, *light.graph.input, *light.graph.output):
        kind = info.type.tensor_type
        if info.type.HasField("tensor_type") and kind.HasField("shape"):
            shapes[info.name] = tuple(
                dim.dim_value if dim.HasField("dim_value") else (dim.dim_param or None) for dim in kind.shape.dim
            )
    return shapes


def infer_types(proto: ModelProto, base_dir: Path | None = None) -> dict[str, int]:
    """Element type (TensorProto.DataType) of every tensor of the main graph that inference can tell."""
    light = _inferred(proto, base_dir, {})
    infos = (*light.graph.value_info, *light.graph.input, *light.graph.output)
    return {info.name: info.type.tensor_type.elem_type for info in infos if info.type.HasField("tensor_type")}


def infer_infos(
    proto: ModelProto,
    base_dir: Path | None = None,
    fed: Mapping[str, Sequence[int]] | None = None,
    *,
    bodies: bool = False,
) -> dict[str, ValueInfoProto]:
    """Type and shape of every tensor that inference can tell from the inputs, of these shapes where `fed` has them.

    What the model declares of other tensors is not believed: the runtime does not either.

    Args:
        proto: the model.
        base_dir: folder of external weights, from which small tensors are read since they may hold shapes.
        fed: input -> shape.
        bodies: tell tensors of bodies, too, and none whose name means something else elsewhere.
    """
    light, _ = lighten(proto, base_dir)
    del light.graph.value_info[:]
    for info in light.graph.output:
        info.type.tensor_type.ClearField("shape")
    _fix(light, fed or {})
    if bodies:
        lend_constants(light.graph)
    light = infer_with_loops(light, _infer) if bodies else _infer(light)
    if not bodies:
        return _infos(light.graph)
    found: dict[str, ValueInfoProto] = {}
    meanings: dict[str, list[bytes]] = {}
    for graph in nested_graphs(light.graph):
        told = _infos(graph)
        found.update(told)
        for name in {*_defined(graph), *told}:
            meanings.setdefault(name, []).append(told[name].type.SerializeToString() if name in told else b"")
    return {name: info for name, info in found.items() if len(set(meanings[name])) == 1}


def _infos(graph: GraphProto) -> dict[str, ValueInfoProto]:
    """What is told of the tensors of one graph; what it is fed it may give out as it is, and declare otherwise."""
    return {info.name: info for info in (*graph.value_info, *graph.output, *graph.input)}


def _defined(graph: GraphProto) -> Iterator[str]:
    """Names of the tensors that a graph makes; two bodies may call theirs alike."""
    yield from (tensor.name for tensor in graph.initializer)
    yield from (name for node in graph.node for name in node.output if name)


def declared_sizes(proto: ModelProto, base_dir: Path | None = None) -> dict[str, Shape]:
    """Sizes of tensors that follow from what the model declares of its inputs; None for those that a feed decides."""
    found: dict[str, Shape] = {}
    for name, info in infer_infos(proto, base_dir, bodies=True).items():
        kind = info.type.tensor_type
        if info.type.HasField("tensor_type") and kind.HasField("shape"):
            found[name] = tuple(dim.dim_value if dim.HasField("dim_value") else None for dim in kind.shape.dim)
    return found


def _inferred(proto: ModelProto, base_dir: Path | None, fed: Mapping[str, Sequence[int]]) -> ModelProto:
    light, _ = lighten(proto, base_dir)
    _fix(light, fed)
    return _infer(light)


def _fix(light: ModelProto, fed: Mapping[str, Sequence[int]]) -> None:
    """Put the fed shapes in, and free what the model declares as -1, as some exporters do for free sizes."""
    for info in (*light.graph.input, *light.graph.output, *light.graph.value_info):
        if info.type.HasField("tensor_type"):
            for dim in info.type.tensor_type.shape.dim:
                if dim.dim_value < 0:
                    dim.Clear()
    for info in light.graph.input:
        if info.name in fed and info.type.HasField("tensor_type"):
            shape = info.type.tensor_type.shape
            shape.ClearField("dim")
            for size in fed[info.name]:
                shape.dim.add(dim_value=size)


def _infer(light: ModelProto) -> ModelProto:
    with contextlib.suppress(onnx.shape_inference.InferenceError, RuntimeError):
        inferred = onnx.shape_inference.infer_shapes(light, data_prop=True)
        is_told = not hide_misjudged(light, inferred)
        light = inferred if is_told else onnx.shape_inference.infer_shapes(light, data_prop=True)
    return light
