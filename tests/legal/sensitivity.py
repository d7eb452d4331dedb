"""How far the outputs of a float model move when every weight and input moves by a step of eight bits."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from onnx import GraphProto, ModelProto, TensorProto, numpy_helper

from tests.models import Array, run

DRAWS = 8
_FLOATS = (TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.DOUBLE)


def steps_noise(model: ModelProto, feed: dict[str, Array], wanted: list[Array]) -> list[float]:
    """The largest sum of squares by which each output moved in a few random draws."""
    rng = np.random.default_rng(0)
    moved = [0.0] * len(wanted)
    for _ in range(DRAWS):
        outputs = run(_shaken(model, rng), {name: _shake(array, rng) for name, array in feed.items()})
        noises = (
            float(np.square(got.astype(np.float64) - want).sum()) for got, want in zip(outputs, wanted, strict=True)
        )
        moved = [max(pair) for pair in zip(moved, noises, strict=True)]
    return moved


def _shaken(model: ModelProto, rng: np.random.Generator) -> ModelProto:
    shaken = ModelProto()
    shaken.CopyFrom(model)
    for tensor in _tensors(shaken.graph):
        if tensor.data_type in _FLOATS:
            tensor.CopyFrom(numpy_helper.from_array(_shake(numpy_helper.to_array(tensor), rng), tensor.name))
    return shaken


def _shake(array: Array, rng: np.random.Generator) -> Array:
    if array.dtype.kind != "f":
        return array
    step = np.abs(array).max(initial=0) / 127
    return np.asarray((array + rng.uniform(-step, step, array.shape)).astype(array.dtype))


def _tensors(graph: GraphProto) -> Iterator[TensorProto]:
    yield from graph.initializer
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.HasField("t"):
                yield attribute.t
            yield from _tensors(attribute.g)
