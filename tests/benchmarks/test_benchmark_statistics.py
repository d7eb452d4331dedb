from __future__ import annotations

import numpy as np
import pytest

from benchmarks.statistics import bootstrap, clustered_proportion, paired_difference, proportion


def hits(count: int, n: int) -> np.ndarray:
    return np.arange(n) < count


def test_wilson_interval_of_a_known_case() -> None:
    # 8 of 10: the textbook interval.
    figure = proportion(hits(8, 10))
    assert (figure.value, figure.n) == (0.8, 10)
    assert figure.low == pytest.approx(0.4902, abs=1e-4)
    assert figure.high == pytest.approx(0.9433, abs=1e-4)


def test_wilson_interval_of_perfection_has_a_width() -> None:
    figure = proportion(hits(10, 10))
    assert figure.high == pytest.approx(1.0)
    assert figure.low == pytest.approx(0.7225, abs=1e-4)


def test_paired_difference_counts_only_disagreements() -> None:
    reference = hits(90, 100)
    ours = reference.copy()
    ours[:4] = False
    figure = paired_difference(ours, reference)
    assert figure.value == pytest.approx(-0.04)
    assert figure.low < -0.04 < figure.high < 0.01


def test_paired_difference_of_equals_reaches_both_sides_of_zero() -> None:
    figure = paired_difference(hits(9, 10), hits(9, 10))
    assert figure.value == 0
    assert figure.low < 0 < figure.high


def test_clusters_widen_the_interval() -> None:
    clusters = np.repeat(np.arange(10), 20)
    ruined = clusters != 0
    plain, clustered = proportion(ruined), clustered_proportion(ruined, clusters)
    assert clustered.value == plain.value
    assert clustered.low < plain.low
    assert clustered.high >= plain.high


def test_bootstrap_is_repeatable() -> None:
    values = np.random.default_rng(0).normal(size=50)
    intervals = {bootstrap(50, lambda chosen: float(values[chosen].mean())) for _ in range(2)}
    assert len(intervals) == 1
