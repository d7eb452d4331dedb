"""Steps that an added number is a multiple of: found, worth their error, and gone from the QDQ model."""

from __future__ import annotations

import numpy as np
import pytest

import amct_onnx
from amct_onnx.analyse.statistics import Distribution
from amct_onnx.analyse.whole_steps import in_whole_steps
from tests.models import Array, normal, parse, run
from tests.passes.fusing import operators

ROWS = np.random.default_rng(3).uniform(0, 1, 4096)
FINE = (1 / 255, -128)


def spread(values: Array) -> Distribution:
    ordered = np.sort(values)
    return Distribution(ordered, np.ones(ordered.size, np.int64), float(ordered[0]), float(ordered[-1]))


def quantized(values: Array, scale: float, offset: int) -> Array:
    return (np.clip(np.rint(values / scale) + offset, -128, 127) - offset) * scale


@pytest.mark.parametrize("number", [0.0703, -0.0703, 0.3, -0.41])
def test_the_number_is_a_multiple_and_the_error_stays_small(number: float) -> None:
    total = ROWS + number
    low, high = min(0.0, total.min()), max(0.0, total.max())
    scale = float(np.float32((high - low) / 255))
    given = (scale, round(-128 - low / scale))
    step, offset = in_whole_steps(*given, number, spread(total), spread(ROWS), FINE)
    assert number / step == pytest.approx(round(number / step), abs=1e-5)
    assert step == pytest.approx(scale, rel=0.06)
    assert -128 <= offset + round(number / step) <= 127
    twice = quantized(quantized(ROWS, *FINE) + number, *given)
    once = quantized(total, step, offset)
    assert np.square(once - total).sum() < np.square(twice - total).sum()


@pytest.mark.parametrize(
    ("number", "before", "why"),
    [
        (0.4 / 255, ROWS, "less than a step"),
        (1.3 / 255, ROWS, "few steps"),
        (-1.0, ROWS + 1, "beyond the zero points"),
    ],
)
def test_a_number_that_asks_for_too_much_changes_nothing(number: float, before: Array, why: str) -> None:
    total = before + number
    given = (float(np.float32(total.max() / 255)), -128)
    quantizer = (float(np.float32(before.max() / 255)), -128)
    assert in_whole_steps(*given, number, spread(total), spread(before), quantizer) == given, why


def test_the_addition_is_gone_from_the_qdq_model() -> None:
    model = parse(
        "[L] s = Conv(x, a) r = Sigmoid(s) m = Add(r, k) [M] y = Conv<pads = [1, 1, 1, 1]>(m, b)",
        "float[1,4,8,8] x",
        "float[p,q,r,s] y",
        {"a": normal(4, 4, 1, 1), "b": normal(4, 4, 3, 3, seed=1), "k": np.array(0.237, np.float32)},
    )
    feeds = [{"x": normal(1, 4, 8, 8, seed=seed)} for seed in range(2, 8)]
    made = amct_onnx.quantize(model, feeds, formats=("qdq",))
    proto = made.models[amct_onnx.OutputForm.QDQ].to_proto()
    assert "Add" not in operators(proto)
    steps = 0.237 / made.record.layers["M"].scale_d
    assert steps == pytest.approx(round(steps), abs=1e-4)
    (want,), (got,) = run(model, feeds[0]), run(proto, feeds[0])
    noise = np.square(got - want).mean() / np.square(want).mean()
    assert 10 * np.log10(1 / noise) > 30
    symmetric = amct_onnx.quantize(model, feeds, formats=("qdq",), symmetric=True)
    assert "Add" in operators(symmetric.models[amct_onnx.OutputForm.QDQ].to_proto())
