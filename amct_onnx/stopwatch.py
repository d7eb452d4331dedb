"""Seconds of the steps of a longer piece of work."""

from __future__ import annotations

import time


class Stopwatch:
    """Keeps the wall time between one call of :meth:`lap` and the next.

    Attributes:
        seconds: step -> seconds.
    """

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._since = time.perf_counter()

    def lap(self, step: str) -> None:
        """Since the last lap this step was done."""
        now = time.perf_counter()
        self.seconds[step] = self.seconds.get(step, 0.0) + now - self._since
        self._since = now
