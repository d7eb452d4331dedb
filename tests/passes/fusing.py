"""What tests of fusing passes share: run the pass, compare the numbers, and name what is left."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from onnx import ModelProto

from amct_onnx.graph import build
from amct_onnx.passes.base import Pass, PassResult
from tests.models import Array, imported, normal, run


def statistics(channels: int, seed: int = 5) -> dict[str, Array]:
    """Constants of a BatchNormalization, by the names g, b, m, v."""
    rng = np.random.default_rng(seed)
    arrays = {name: rng.normal(size=channels).astype(np.float32) for name in "gbm"}
    return arrays | {"v": rng.uniform(0.1, 2, channels).astype(np.float32)}


def after(model: ModelProto, step: Pass) -> tuple[ModelProto, PassResult]:
    """The model that a pass makes, and what it says it did."""
    graph = imported(model)
    result = step.run(graph)
    return build(graph).to_proto(), result


def operators(model: ModelProto) -> list[str]:
    """Operator types in order."""
    return [node.op_type for node in model.graph.node]


def assert_same_numbers(model: ModelProto, other: ModelProto, feeds: Mapping[str, Array]) -> None:
    """Whether onnxruntime computes the same up to rounding, with no graph optimization that could hide a difference."""
    before, now = run(model, feeds, optimized=False), run(other, feeds, optimized=False)
    for expected, got in zip(before, now, strict=True):
        assert got.shape == expected.shape
        np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-4 * max(1.0, float(np.abs(expected).max())))


def data(*shape: int) -> dict[str, Array]:
    """A feed of x."""
    return {"x": normal(*shape, seed=2)}
