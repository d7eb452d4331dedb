from __future__ import annotations

import numpy as np
import pytest

from benchmarks.fidelity import MOST_DECIBEL, ChannelNoise


def test_the_worst_channel_is_found_though_the_whole_looks_fine() -> None:
    noise = ChannelNoise(channel_axis=1)
    reference = np.array([[100.0, 10.0], [100.0, 10.0]])
    noise.add(reference, reference + np.array([0.0, 10.0]))
    assert noise.worst() == pytest.approx(0.0)
    assert noise.whole() == pytest.approx(10 * np.log10(20200 / 200))


def test_feeds_add_up() -> None:
    generator = np.random.default_rng(0)
    reference = generator.normal(size=(6, 3, 4, 4))
    output = reference + 0.1 * generator.normal(size=reference.shape)
    whole, parts = ChannelNoise(1), ChannelNoise(1)
    whole.add(reference, output)
    parts.add(reference[:2], output[:2])
    parts.add(reference[2:], output[2:])
    assert parts.worst() == pytest.approx(whole.worst())


def test_silent_channels_are_left_out() -> None:
    noise = ChannelNoise(1)
    noise.add(np.array([[1.0, 1e-6]]), np.array([[1.0, 1.0]]))
    assert noise.worst() == MOST_DECIBEL


def test_outputs_that_are_not_finite_are_the_worst() -> None:
    noise = ChannelNoise(1)
    noise.add(np.ones((1, 2)), np.array([[1.0, np.nan]]))
    assert noise.worst() == -MOST_DECIBEL
