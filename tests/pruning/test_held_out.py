"""How many feeds losses are measured on, and which."""

from __future__ import annotations

import numpy as np
import pytest

from amct_onnx.analyse.fitting.data import FittingData
from amct_onnx.analyse.shapes import held_out
from tests.models import parse

SOURCE = parse("y = Relu(x)", "float[n,1] x", "float[n,1] y")


@pytest.mark.parametrize(
    ("feeds", "samples", "measured"),
    [
        (400, 1, 16),  # no more than that, however few samples they hold
        (100, 1, 16),
        (40, 1, 8),  # no more than every fifth
        (33, 10, 6),
        (100, 16, 4),  # 64 samples
        (100, 500, 3),  # three at least
        (8, 1, 3),
    ],
)
def test_the_last_feeds_are_measured_on(feeds: int, samples: int, measured: int) -> None:
    data = [{"x": np.full((samples, 1), number, np.float32)} for number in range(feeds)]
    rest, probes = held_out(SOURCE, None, FittingData(data))
    assert rest.feeds == feeds - measured
    assert [int(probe["x"][0, 0]) for probe in probes] == list(range(feeds - measured, feeds))


@pytest.mark.parametrize("feeds", [1, 2, 7])
def test_few_feeds_are_fitted_to_and_measured_on(feeds: int) -> None:
    data = [{"x": np.full((1, 1), number, np.float32)} for number in range(feeds)]
    rest, probes = held_out(SOURCE, None, FittingData(data))
    assert rest.feeds is None
    assert [int(probe["x"][0, 0]) for probe in probes] == list(range(min(3, feeds)))
