"""Models whose channels the suite silences give what the models without these channels give."""

from __future__ import annotations

import numpy as np
import pytest

import amct_onnx
from amct_onnx.rewrite.pruning import open_prunable, units_of_records
from benchmarks.silence import silenced
from tests.models import normal, parse, run

LAYERS = {
    "plain": ("Conv(s, v)", (8, 8, 1, 1)),
    "depthwise": ("Conv<group = 8>(s, v)", (8, 1, 1, 1)),
    "in groups": ("Conv<group = 2>(s, v)", (8, 4, 1, 1)),
    "transposed": ("ConvTranspose(s, v)", (8, 8, 1, 1)),
    "transposed in groups": ("ConvTranspose<group = 2>(s, v)", (8, 4, 1, 1)),
}


@pytest.mark.parametrize("case", LAYERS)
def test_silent_channels_may_go(case: str) -> None:
    call, shape = LAYERS[case]
    source = parse(
        f"[first] s = Conv(x, w) [second] t = {call} [last] y = Conv(t, k)",
        "float[1,3,5,5] x",
        "float[1,4,5,5] y",
        {"w": normal(8, 3, 1, 1), "v": normal(*shape, seed=1), "k": normal(4, 8, 1, 1, seed=2)},
    )
    pruned = amct_onnx.prune(source, ratio=0.5)
    shapes = {"x": (1, 3, 5, 5), "s": (1, 8, 5, 5), "t": (1, 8, 5, 5), "y": (1, 4, 5, 5)}
    prunable = open_prunable(source, None, shapes)
    silent = silenced(prunable, units_of_records(prunable, pruned.record.prune, "record"))
    fed = {"x": normal(1, 3, 5, 5, seed=3)}
    want, got = (run(proto, fed)[0] for proto in (silent, pruned.model.to_proto()))
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)
    assert not np.allclose(want, run(source, fed)[0])
