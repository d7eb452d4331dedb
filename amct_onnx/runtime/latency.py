"""How long models take, measured side by side."""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping
from typing import Any

import onnxruntime as ort
from numpy.typing import NDArray


def compare_latency(
    sessions: Mapping[str, ort.InferenceSession],
    feed: Mapping[str, NDArray[Any]],
    *,
    seconds: float = 1.0,
    rounds: int = 5,
    warm_up: bool = True,
) -> dict[str, float]:
    """Median seconds per run of each session; see :func:`time_runs`."""
    timed = time_runs(sessions, feed, seconds=seconds, rounds=rounds, warm_up=warm_up)
    return {name: statistics.median(values) for name, values in timed.items()}


def time_runs(
    sessions: Mapping[str, ort.InferenceSession],
    feed: Mapping[str, NDArray[Any]],
    *,
    seconds: float = 1.0,
    rounds: int = 5,
    warm_up: bool = True,
) -> dict[str, list[float]]:
    """Seconds of every run of each session.

    The sessions take turns, so that whatever else the machine does meets them alike.

    Args:
        sessions: name -> session.
        feed: what each run is fed.
        seconds: time to spend altogether.
        rounds: number of rounds that are run at least.
        warm_up: run every session once beforehand.
    """
    times: dict[str, list[float]] = {name: [] for name in sessions}
    for session in sessions.values() if warm_up else ():
        session.run(None, dict(feed))
    end = time.perf_counter() + seconds
    done = 0
    while done < rounds or time.perf_counter() < end:
        for name, session in sessions.items():
            begin = time.perf_counter()
            session.run(None, dict(feed))
            times[name].append(time.perf_counter() - begin)
        done += 1
    return times
