"""Moments of what layers read, gathered walk by walk: few are held at a time, and none says anything else for it."""

from __future__ import annotations

import numpy as np
import pytest

from amct_onnx.analyse.fitting import view_moments
from amct_onnx.analyse.fitting.data import FittingData
from amct_onnx.analyse.pruning.reader_views import ReaderMoments
from amct_onnx.analyse.shapes import tensor_shapes
from amct_onnx.rewrite.pruning import open_prunable
from tests.models import normal, parse

COUNT = 6


def test_few_walks_are_held_and_each_is_right(monkeypatch: pytest.MonkeyPatch) -> None:
    nodes = " ".join(f"[l{n}] t{n} = MatMul({f't{n - 1}' if n else 'x'}, w{n})" for n in range(COUNT))
    weights = {f"w{n}": normal(8, 8, seed=n) for n in range(COUNT)}
    model = parse(f"{nodes} y = Relu(t{COUNT - 1})", "float[n,8] x", "float[n,8] y", weights)
    data = [{"x": normal(16, 8, seed=seed)} for seed in range(3)]
    prunable = open_prunable(model, None, tensor_shapes(model, None, data[0]))
    # One layer's covariance is 8 * 8 * 8 bytes: every walk gathers one.
    monkeypatch.setattr(view_moments, "_WALK_BYTES", 512)
    moments = ReaderMoments(prunable.flow.readers, model, None, FittingData(data))
    assert list(moments) == [f"l{n}" for n in range(1, COUNT)]
    assert not moments.evidence
    for name in moments:
        (part,) = moments[name]
        seen = np.concatenate([fed["x"] for fed in data]).astype(np.float64)
        for before in range(int(name[1:])):
            seen = seen @ weights[f"w{before}"]
        np.testing.assert_allclose(part.covariance, np.cov(seen.T, bias=True), rtol=1e-4, atol=1e-4)
        assert len(moments._held) <= 2
    assert {name: one.rows for name, one in moments.evidence.items()} == dict.fromkeys(moments, 48)
    again = moments["l1"][0]
    first = np.concatenate([fed["x"] for fed in data]) @ weights["w0"]
    np.testing.assert_allclose(again.mean_x, first.mean(axis=0), rtol=1e-4, atol=1e-5)
