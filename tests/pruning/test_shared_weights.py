"""Layers that apply one weight, step by step, are ranked and fitted as one, and keep one weight."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import ModelProto

import amct_onnx
from amct_onnx.analyse.fitting.data import FittingData
from amct_onnx.analyse.pruning.reader_views import ReaderMoments, group_views
from amct_onnx.analyse.shapes import tensor_shapes
from amct_onnx.rewrite.pruning import open_prunable
from tests.models import Array, initializers, normal, parse, run

STEPS, INNER, OUT = 3, 12, 4
READERS = {
    "Gemm with a bias": ("y{n} = Gemm <transB = 1>(r{n}, v, b)", (OUT, INNER), "b"),
    "Gemm without": ("y{n} = Gemm <transB = 1>(r{n}, v)", (OUT, INNER), "last{n}.bias"),
    "MatMul with a bias": ("p{n} = MatMul(r{n}, v) y{n} = Add(p{n}, b)", (INNER, OUT), "b"),
    "MatMul without": ("y{n} = MatMul(r{n}, v)", (INNER, OUT), ""),
}


def network(reader: str) -> ModelProto:
    """The same two layers at every step: float[n, 5] each to float[n, 4]."""
    nodes, shape, bias = READERS[reader]
    steps = [f"a{n} = MatMul(x{n}, w) r{n} = Relu(a{n}) [last{n}] {nodes.format(n=n)}" for n in range(STEPS)]
    return parse(
        " ".join(steps),
        ", ".join(f"float[n,5] x{n}" for n in range(STEPS)),
        ", ".join(f"float[n,{OUT}] y{n}" for n in range(STEPS)),
        {
            "w": normal(5, INNER, seed=1),
            "v": normal(*shape, seed=2),
            **({"b": normal(OUT, seed=3)} if bias == "b" else {}),
        },
    )


def feeds(count: int = 6) -> list[dict[str, Array]]:
    return [{f"x{n}": normal(40, 5, seed=STEPS * index + n) + n for n in range(STEPS)} for index in range(count)]


def states(proto: ModelProto, data: list[dict[str, Array]]) -> Array:
    """What the readers read, all steps in one."""
    w = initializers(proto)["w"]
    return np.concatenate([np.maximum(feed[f"x{n}"] @ w, 0) for feed in data for n in range(STEPS)]).astype(np.float64)


@pytest.mark.parametrize("reader", READERS)
def test_they_are_looked_at_as_one(reader: str) -> None:
    proto, data = network(reader), feeds()
    prunable = open_prunable(proto, None, tensor_shapes(proto, None, data[0]))
    moments = ReaderMoments(prunable.flow.readers, proto, None, FittingData(data))
    for n in range(STEPS):
        (part,) = moments[f"last{n}"]
        np.testing.assert_allclose(part.covariance, np.cov(states(proto, data).T, bias=True), rtol=1e-4, atol=1e-5)
    (group,) = [group for group in prunable.groups if group.is_free.any()]
    (view,) = group_views(prunable.flow, group, moments)
    assert view.readers == STEPS
    assert set(moments.evidence) == {f"last{n}" for n in range(STEPS)}


@pytest.mark.parametrize("reader", READERS)
def test_they_are_fitted_as_one_and_keep_one_weight(reader: str) -> None:
    proto, data = network(reader), feeds()
    result = amct_onnx.prune(proto, data, ratio=0.5)
    pruned = result.model.to_proto()
    _, shape, bias = READERS[reader]
    after = initializers(pruned)
    assert {name: array.shape for name, array in after.items() if name != "w"} == {
        "v": tuple(size if size == OUT else INNER // 2 for size in shape),
        **({bias.format(n=0): (OUT,)} if bias else {}),
    }
    assert result.report.fitted == tuple(f"last{n}" for n in range(STEPS))
    # Least squares over the rows of all steps; hardly any ridge is left with so many rows.
    x = states(pruned, data)
    y = np.concatenate([step for feed in data for step in run(proto, feed)])
    columns = np.column_stack([x, np.ones(len(x))]) if bias else x
    best = float(np.square(y - columns @ np.linalg.lstsq(columns, y, rcond=None)[0]).sum())
    got = np.concatenate([step for feed in data for step in run(pruned, feed)])
    assert best <= float(np.square(y - got).sum()) * (1 + 1e-6) <= 1.05 * best


def test_other_biases_are_fitted_apart() -> None:
    proto = network("Gemm with a bias")
    for n, node in enumerate(node for node in proto.graph.node if node.op_type == "Gemm"):
        node.input[2] = f"b{n}"
        tensor = proto.graph.initializer.add()
        tensor.CopyFrom(next(one for one in proto.graph.initializer if one.name == "b"))
        tensor.raw_data = (normal(OUT, seed=3) + np.float32(10 * n)).tobytes()
        tensor.ClearField("float_data")
        tensor.name = f"b{n}"
    data = feeds()
    pruned = amct_onnx.prune(proto, data, ratio=0.5).model.to_proto()
    for feed in data:
        for before, after in zip(run(proto, feed), run(pruned, feed), strict=True):
            # Not about a mean of all steps.
            assert np.abs(before.mean(axis=0) - after.mean(axis=0)).max() < 3


@pytest.mark.parametrize("importance", ["l2", "energy", "taylor", "reconstruction"])
def test_a_weight_that_stands_first_and_second_is_fitted_apart(importance: str) -> None:
    """The one applies it, the other what it is when turned."""
    weights = {"p": normal(6, 16), "w": normal(16, 16, seed=1), "m": normal(16, 4, seed=2)}
    proto = parse(
        """h = MatMul(x, p) [second] u = MatMul(h, w) t = Transpose(h) [first] v = MatMul(w, t) s = Transpose(v)
           r = Add(u, s) y = MatMul(r, m)""",
        "float[n,6] x",
        "float[n,4] y",
        weights,
    )
    data = [{"x": normal(32, 6, seed=seed)} for seed in range(8)]

    def error(*, recover: bool) -> float:
        result = amct_onnx.prune(proto, data, ratio=0.5, importance=importance, recover=recover)
        pruned = result.model.to_proto()
        assert {"second", "first"} <= set(result.report.fitted) or not recover
        return sum(float(np.square(run(proto, feed)[0] - run(pruned, feed)[0]).sum()) for feed in data)

    assert error(recover=True) < error(recover=False)
