"""What a model loses without some channels, beside a whole run of the pruned model in onnxruntime."""

from __future__ import annotations

import numpy as np
import onnxruntime as ort
import pytest
from onnx import ModelProto

from amct_onnx.analyse.pruning.sensitivity import Sensitivity
from amct_onnx.analyse.shapes import tensor_shapes
from amct_onnx.rewrite.pruning import open_prunable, prune_model
from tests.models import Array, normal, parse

CASES = {
    "a chain": (
        "a = MatMul(x, t) b = Relu(a) c = MatMul(b, u) d = Relu(c) y = MatMul(d, w)",
        {"t": (6, 8), "u": (8, 8), "w": (8, 3)},
    ),
    "a sum that starts at a constant": (
        "k = Neg(e) a = MatMul(x, t) b = Add(a, k) c = MatMul(b, u) d = Relu(c) y = MatMul(d, w)",
        {"e": (8,), "t": (6, 8), "u": (8, 8), "w": (8, 3)},
    ),
    "a reader in a branch": (
        """a = MatMul(x, t) b = Relu(a) c = MatMul(b, u) m = ReduceMax <keepdims = 0>(x) z = Cast <to = 9>(m)
        y = If (z) <then_branch = g () => (float[n,3] p) { p = MatMul(c, w) },
                    else_branch = h () => (float[n,3] q) { q = MatMul(c, w) }>""",
        {"t": (6, 8), "u": (8, 8), "w": (8, 3)},
    ),
    "two results, one made early": (
        "a = MatMul(x, t) y = MatMul(a, w) b = MatMul(x, u) v = MatMul(b, r)",
        {"t": (6, 8), "u": (6, 8), "w": (8, 3), "r": (8, 3)},
    ),
}


def run(proto: ModelProto, feed: dict[str, Array]) -> Array:
    session = ort.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    return np.concatenate(session.run(None, feed), axis=1).astype(np.float64)


@pytest.mark.parametrize("case", CASES)
def test_losses_of_every_group_are_those_of_the_whole_model(case: str) -> None:
    nodes, sizes = CASES[case]
    weights = {name: normal(*shape, seed=seed) for seed, (name, shape) in enumerate(sizes.items())}
    outputs = "float[n,3] y" + (", float[n,3] v" if "v = " in nodes else "")
    model = parse(nodes, "float[n,6] x", outputs, weights)
    feeds = [{"x": normal(count, 6, seed=count)} for count in (4, 7)]
    shapes = tensor_shapes(model, None, feeds[0])
    sensitivity = Sensitivity(model, None, shapes, feeds)
    groups = [group for group in open_prunable(model, None, shapes).groups if group.is_free.any()]
    assert len(groups) == 2
    # In graph order as the search goes, and back.
    for group in (*groups, *groups[::-1]):
        units = group.units[group.is_free][:2]
        pruned = prune_model(open_prunable(model, None, shapes), units).to_proto()
        wanted, got = [[run(proto, feed) for feed in feeds] for proto in (model, pruned)]
        noise = sum(np.square(one - other).sum() for one, other in zip(wanted, got, strict=True))
        signal = sum(
            np.square(part - part.mean()).sum() for one in wanted for part in np.split(one, one.shape[1] // 3, axis=1)
        )
        assert noise > 0
        assert sensitivity.of(units, {}) == pytest.approx(noise / signal, rel=1e-4)
