"""Layers are fitted in their own float type, to rows that can be compared, on data of any size."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import ModelProto

import amct_onnx
from amct_onnx.errors import DataError
from amct_onnx.graph import BuiltModel
from tests.models import Array, initializers, normal, parse, run

FLOATS = {np.float16: "float16", np.float32: "float", np.float64: "double"}


@pytest.mark.parametrize("compress", ["prune", "sparsify"])
@pytest.mark.parametrize("dtype", FLOATS)
def test_a_bias_that_a_fit_adds_has_the_type_of_the_weight(compress: str, dtype: type) -> None:
    word = FLOATS[dtype]
    weights = {"w": normal(4, 8).astype(dtype), "v": normal(8, 3, seed=1).astype(dtype)}
    proto = parse("s = Gemm(x, w) t = Relu(s) y = Gemm(t, v)", f"{word}[n,4] x", f"{word}[a,b] y", weights)
    feeds = [normal(16, 4, seed=seed).astype(dtype) for seed in range(4)]
    result = amct_onnx.prune(proto, feeds, ratio=0.5) if compress == "prune" else amct_onnx.sparsify(proto, feeds)
    made = initializers(result.model.to_proto())
    assert len(made) > len(weights)
    assert {values.dtype for values in made.values()} == {np.dtype(dtype)}


def test_a_layer_that_gives_fewer_places_is_not_fitted() -> None:
    """Channels of the first lie along the places of the next two: the float model has results at more of them."""
    proto = parse(
        """[first] s = Conv(x, w) t = Transpose<perm = [0, 2, 1]>(s) [second] u = Conv(t, v) [third] q = Conv(u, m)
           [last] y = MatMul(q, k)""",
        "float[n,3,7] x",
        "float[n,5,2] y",
        {
            "w": normal(8, 3, 1),
            "v": normal(6, 7, 1, seed=1),
            "m": normal(5, 6, 1, seed=2),
            "k": normal(8, 2, seed=3),
        },
    )
    feeds = [normal(4, 3, 7, seed=seed) for seed in range(6)]
    report = amct_onnx.prune(proto, feeds, ratio=0.5).report
    assert [(group.layers, group.removed) for group in report.groups][:2] == [(("first",), 4), (("second",), 3)]
    assert report.fitted == ("last",)


HUGE = {
    "denormal": (np.float32, float(np.finfo(np.float32).tiny) / 8),
    "tiny": (np.float32, 1e-30),
    "huge": (np.float32, 1e30),
    "squares that float64 does not hold": (np.float64, 1e200),
}


@pytest.mark.parametrize("compress", ["prune", "taylor", "saving", "sparsify"])
@pytest.mark.parametrize("name", HUGE)
@pytest.mark.filterwarnings("error::RuntimeWarning")
def test_data_of_any_size_gives_finite_weights(compress: str, name: str) -> None:
    dtype, size = HUGE[name]
    word = FLOATS[dtype]
    weights = {"w": normal(6, 32).astype(dtype), "v": normal(32, 3, seed=1).astype(dtype)}
    proto = parse("s = MatMul(x, w) t = Relu(s) y = MatMul(t, v)", f"{word}[n,6] x", f"{word}[n,3] y", weights)
    usual = normal(8, 6).astype(dtype)
    odd = [(normal(8, 6, seed=seed).astype(np.float64) * size).astype(dtype) for seed in (1, 2)]
    for data in ([usual, *odd], odd):
        if size > 1e100 and data is odd:
            with pytest.raises(DataError, match="infinite values"):
                _compressed(compress, proto, data)
            continue
        made = _compressed(compress, proto, data)
        assert all(np.isfinite(values).all() for values in initializers(made.to_proto()).values())
        assert run(made, {"x": usual})[0].shape == (8, 3)


def _compressed(how: str, proto: ModelProto, data: list[Array]) -> BuiltModel:
    if how == "sparsify":
        return amct_onnx.sparsify(proto, data).model
    if how == "saving":
        return amct_onnx.prune(proto, data, saving=0.3).model
    return amct_onnx.prune(proto, data, ratio=0.5, importance="taylor" if how == "taylor" else None).model
