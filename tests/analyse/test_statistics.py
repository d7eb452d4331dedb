import numpy as np
import pytest

from amct_onnx.analyse.statistics import BINS, EXACT_LIMIT, TensorStatistics


def seen(*arrays):
    statistics = TensorStatistics()
    for array in arrays:
        statistics.update(np.asarray(array, np.float32))
    return statistics


def test_few_values_are_kept_exactly():
    values = np.array([3.0, -1.0, 3.0, 0.5], np.float32)
    distribution = seen(values[:2], values[2:]).distribution()
    np.testing.assert_array_equal(distribution.values, [-1.0, 0.5, 3.0])
    np.testing.assert_array_equal(distribution.counts, [1, 1, 2])
    assert (distribution.low, distribution.high, distribution.total) == (-1.0, 3.0, 4)


def many(seed=0, size=3 * EXACT_LIMIT):
    rng = np.random.default_rng(seed)
    return (rng.standard_normal(size) * rng.choice([0.01, 1.0, 30.0], size)).astype(np.float32)


def test_histogram_equals_numpy_binning():
    values = many()
    statistics = seen(values)
    edge = 2.0 ** np.ceil(np.log2(np.abs(values).max() * (1 + 1e-7)))
    counts, edges = np.histogram(values.astype(np.float64), bins=BINS, range=(-edge, edge))
    distribution = statistics.distribution()
    np.testing.assert_array_equal(distribution.counts, counts[counts > 0])
    middles = ((edges[:-1] + edges[1:]) / 2)[counts > 0]
    np.testing.assert_allclose(distribution.values[1:-1], middles[1:-1], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("pieces", [2, 7, 40])
def test_batches_and_order_change_nothing(pieces):
    values = many()
    whole = seen(values)
    rng = np.random.default_rng(pieces)
    batches = np.array_split(rng.permutation(values), pieces)
    parts = seen(*sorted(batches, key=lambda batch: np.abs(batch).max()))
    assert (parts.low, parts.high, parts.count) == (whole.low, whole.high, whole.count)
    np.testing.assert_array_equal(parts.distribution().counts, whole.distribution().counts)
    np.testing.assert_array_equal(parts.distribution().values, whole.distribution().values)


def test_growing_ranges_merge_to_the_same_counts():
    small, large = many(1) / 1000, many(2) * 50
    np.testing.assert_array_equal(seen(small, large).distribution().counts, seen(large, small).distribution().counts)


def test_values_on_the_edges_of_the_range():
    values = np.concatenate([np.full(EXACT_LIMIT, -4.0), np.full(5, 4.0), np.zeros(7), np.full(3, -1e-30)])
    distribution = seen(values).distribution()
    assert distribution.total == values.size
    assert distribution.counts[0] == EXACT_LIMIT
    assert distribution.counts[-1] == 5


def test_all_zero_data():
    distribution = seen(np.zeros(2 * EXACT_LIMIT)).distribution()
    assert (distribution.total, distribution.low, distribution.high) == (2 * EXACT_LIMIT, 0.0, 0.0)


def test_not_finite_values_are_counted_and_left_out():
    statistics = seen([1.0, np.nan, -2.0, np.inf, -np.inf], [np.nan], [])
    assert (statistics.nan, statistics.inf, statistics.count) == (2, 2, 2)
    assert (statistics.low, statistics.high) == (-2.0, 1.0)


def test_real_values_beside_not_finite_ones_count_in_histograms():
    values = many()
    dirty = np.concatenate([values, [np.nan, np.inf]]).astype(np.float32)
    np.testing.assert_array_equal(seen(dirty).distribution().counts, seen(values).distribution().counts)


def test_memory_does_not_grow_with_the_data():
    statistics = seen(*[many(seed) for seed in range(5)])
    assert statistics._exact == []
    assert statistics._counts.size == BINS
