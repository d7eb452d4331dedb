"""Graphs with the shape of a known network but random weights: enough to measure cost, useless for accuracy."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import onnx
from onnx import numpy_helper, version_converter

from benchmarks.fetch import MODELS
from benchmarks.workloads.base import Array, Feed
from models.makers.files import replacing

SEED = 50
OPSET = 17
RESNET50_INPUT = "gpu_0/data_0"
FEEDS = 20
# What BatchNormalization reads after its input: scale, bias, mean, variance. A small scale keeps residuals bounded.
NORMALIZATION = (0.5, 0.0, 0.0, 1.0)


def resnet50() -> Path:
    """Return ResNet-50 with seeded random weights, made from the weightless graph that comes with onnx."""
    path = MODELS / "resnet50_shape.onnx"
    if not path.exists():
        source = Path(onnx.__file__).parent / "backend/test/data/light/light_resnet50.onnx"
        with replacing(path) as temporary:
            onnx.save(_with_weights(onnx.load(source)), temporary)
    return path


def resnet50_feeds() -> list[Feed]:
    """Return seeded random images, one a feed, as the graph asks."""
    images = np.random.default_rng(SEED).standard_normal((FEEDS, 1, 3, 224, 224), np.float32)
    return [{RESNET50_INPUT: image} for image in images]


def _with_weights(light: onnx.ModelProto) -> onnx.ModelProto:
    """Put stored weights in the place of nodes that make constant ones, and raise the opset."""
    graph = light.graph
    stored = {tensor.name: numpy_helper.to_array(tensor) for tensor in graph.initializer}
    makers = [node for node in graph.node if node.op_type == "ConstantOfShape"]
    generator = np.random.default_rng(SEED)
    for node in makers:
        stored[node.output[0]] = _weight(tuple(stored.pop(node.input[0])), generator)
    for node in graph.node:
        if node.op_type == "BatchNormalization":
            for name, value in zip(node.input[1:], NORMALIZATION, strict=True):
                stored[name] = np.full_like(stored[name], value)
    whole = onnx.helper.make_graph(
        [node for node in graph.node if node.op_type != "ConstantOfShape"],
        "resnet50_shape",
        # From IR version 4 on, weights need not be inputs too.
        [value for value in graph.input if value.name == RESNET50_INPUT],
        graph.output,
        [numpy_helper.from_array(array, name) for name, array in stored.items()],
    )
    model = onnx.helper.make_model(whole, opset_imports=light.opset_import, ir_version=8)
    return version_converter.convert_version(model, OPSET)


def _weight(shape: tuple[int, ...], generator: np.random.Generator) -> Array:
    """Draw a weight whose outputs keep the variance of its inputs through a Relu; vectors are zero."""
    if len(shape) < 2:
        return np.zeros(shape, np.float32)
    deviation = math.sqrt(2 / math.prod(shape[1:]))
    return (deviation * generator.standard_normal(shape)).astype(np.float32)
