"""Shapes of all tensors, without loading a weight."""

from __future__ import annotations

import contextlib

import onnx
from onnx import ModelProto, TensorProto

_SMALL = 1024
Shape = tuple[int | str | None, ...]


def infer_shapes(proto: ModelProto) -> dict[str, Shape]:
    """Shape of every tensor of the main graph that inference can tell; free sizes are names or None.

    Models that onnx's inference refuses give what the model itself declares.
    """
    light = without_large_weights(proto)
    with contextlib.suppress(onnx.shape_inference.InferenceError):
        light = onnx.shape_inference.infer_shapes(light, data_prop=True)
    shapes: dict[str, Shape] = {}
    for info in (*light.graph.value_info, *light.graph.input, *light.graph.output):
        kind = info.type.tensor_type
        if info.type.HasField("tensor_type") and kind.HasField("shape"):
            shapes[info.name] = tuple(
                dim.dim_value if dim.HasField("dim_value") else (dim.dim_param or None) for dim in kind.shape.dim
            )
    return shapes


def without_large_weights(proto: ModelProto) -> ModelProto:
    """A copy whose large initializers have lost their bytes but not type and shape."""
    light = ModelProto()
    light.CopyFrom(proto)
    for initializer in light.graph.initializer:
        count = 1
        for dim in initializer.dims:
            count *= dim
        if count > _SMALL or initializer.data_location == TensorProto.EXTERNAL:
            name, data_type, dims = initializer.name, initializer.data_type, list(initializer.dims)
            initializer.Clear()
            initializer.name, initializer.data_type = name, data_type
            initializer.dims.extend(dims)
            initializer.data_location = TensorProto.EXTERNAL
            entry = initializer.external_data.add()
            entry.key, entry.value = "location", "elsewhere"
    return light
