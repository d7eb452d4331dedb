"""Loops that are pruned run as often as the source runs, which may be never."""

from __future__ import annotations

import numpy as np

import amct_onnx
from tests.models import normal, parse, run


def test_a_loop_that_never_runs_gives_as_many_channels_as_are_left() -> None:
    # Without a run the runtime makes an empty result of the sizes that the body declares.
    source = parse(
        """[first] s = MatMul(x, w)
           last, all = Loop(times, , s) < body = d (int64 i, bool go, float[p,q] a) => (
               bool on, float[p,q] b, float[2,8] each) {
               on = Identity(go) b = Tanh(a) each = Neg(a) }>
           [last] y = MatMul(all, v)""",
        "float[2,5] x, int64 times",
        "float[a,2,3] y",
        {"w": normal(5, 8), "v": normal(8, 3, seed=1)},
    )
    pruned = amct_onnx.prune(source, ratio=0.5).model.to_proto()
    feed = {"x": normal(2, 5, seed=2)}
    for times in (0, 1, 3):
        assert run(pruned, {**feed, "times": np.array(times)})[0].shape == (times, 2, 3)
