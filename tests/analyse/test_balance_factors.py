"""DMQ factors against published reference values, and what they are for."""

import numpy as np
import pytest

from amct_onnx.analyse.algorithms.balance import balance_factors

# AMCT's factors: rows are input channels.
REFERENCE = [
    (
        [[0, 0], [1, -4], [0.5, 0.25], [0, 0]],
        [[0.5, 0.25], [0, 0], [0.1, -0.4], [0, 0]],
        [0.89442724, 8.94427204, 1.11803401, 1.0],
    ),
    (
        [[0, 0], [1, -4], [0.5, 0.25], [2, 0]],
        [[0.5, 0.25], [0.2, 0], [0.1, -0.4], [0, 0]],
        [1.78885424, 4.47213554, 1.11803401, 2.23606777],
    ),
]


@pytest.mark.parametrize(("acts", "weights", "expected"), REFERENCE)
def test_factors_meet_the_reference(acts, weights, expected):
    got = balance_factors(np.abs(acts).max(axis=1), np.abs(weights).max(axis=1))
    np.testing.assert_allclose(got, expected, rtol=1e-6)


@pytest.mark.parametrize("side", ["activations", "weights", "both"])
def test_nothing_to_compare_with_leaves_factors_at_one(side):
    zero, some = np.zeros(3), np.array([1.0, 2.0, 3.0])
    acts = zero if side in ("activations", "both") else some
    weights = zero if side in ("weights", "both") else some
    np.testing.assert_array_equal(balance_factors(acts, weights), np.ones(3, np.float32))


def test_strength_shares_the_spread():
    acts, weights = np.array([8.0, 1.0]), np.array([1.0, 1.0])
    weak, strong = (balance_factors(acts, weights, migration_strength=m) for m in (0.2, 0.8))
    assert (acts / weak).max() > (acts / strong).max()
    assert (weights * weak).max() < (weights * strong).max()


def test_factors_stay_within_what_a_record_takes():
    got = balance_factors(np.array([1e30, 1e-6]), np.array([1e-6, 1e30]))
    epsilon = np.finfo(np.float32).eps
    assert np.all((got > epsilon) & (got < 1 / epsilon * 1.001))
