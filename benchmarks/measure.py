"""Time, memory and size. Timed code runs alone: the callers start one child after the other."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import TypeVar

import numpy as np
import onnxruntime

from benchmarks.statistics import Figure, bootstrap
from benchmarks.workloads.base import Feed, Run

T = TypeVar("T")

LEAST_SAMPLE_SECONDS = 2e-3
LEAST_ROUNDS = 25


@dataclass(frozen=True)
class Latency:
    """Median milliseconds of two models on one feed, and the median of the paired ratios (above 1: faster)."""

    reference_ms: float
    model_ms: float
    speed_up: Figure


@dataclass(frozen=True)
class Cost:
    """CPU and wall seconds of a piece of work."""

    cpu: float
    wall: float


@dataclass(frozen=True)
class Child:
    """How a child process ended, and what it used."""

    status: int
    stderr: str
    cpu: float
    wall: float
    peak_bytes: int

    @property
    def failure(self) -> str | None:
        """Say in a few words why the child failed; None when it did not."""
        if self.status == 0:
            return None
        if "MemoryError" in self.stderr or "bad_alloc" in self.stderr or "Failed to allocate" in self.stderr:
            return "memory cap"
        if self.status < 0:
            return f"crash ({signal.Signals(-self.status).name})"
        lines = [line for line in self.stderr.strip().splitlines() if line.strip()]
        return f"error: {lines[-1].strip()[:160]}" if lines else f"exit {self.status}"


def session(model_path: Path, threads: int = 0) -> onnxruntime.InferenceSession:
    """Open a model on the CPU; 0 threads leaves the number to onnxruntime."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    # Warnings about a peer's model would drown the table.
    options.log_severity_level = 3
    # Idle threads of one session would otherwise spin on while the other is timed.
    options.add_session_config_entry("session.force_spinning_stop", "1")
    return onnxruntime.InferenceSession(model_path, options, providers=["CPUExecutionProvider"])


def runner(model_path: Path, threads: int = 0) -> Run:
    """Return a function that runs a feed through the model."""
    opened = session(model_path, threads)
    return lambda feed: opened.run(None, feed)


def latency(reference: Path, model: Path, feed: Feed, threads: int, seconds: float) -> Latency:
    """Time two models in turns, so that whatever slows the machine down meets both."""
    runs = [runner(reference, threads), runner(model, threads)]
    repeats = [_repeats(run, feed) for run in runs]
    samples: list[list[float]] = [[], []]
    stop = time.perf_counter() + seconds
    while len(samples[0]) < LEAST_ROUNDS or time.perf_counter() < stop:
        # The order changes every round: being second in a warm cache must favour nobody.
        for which in (0, 1) if len(samples[0]) % 2 == 0 else (1, 0):
            samples[which].append(_sample(runs[which], feed, repeats[which]))
    first, second = np.array(samples)
    ratios = first / second
    low, high = bootstrap(len(ratios), lambda chosen: float(np.median(ratios[chosen])))
    speed_up = Figure(float(np.median(ratios)), low, high, len(ratios))
    return Latency(1e3 * median(samples[0]), 1e3 * median(samples[1]), speed_up)


def cost(work: Callable[[], T]) -> tuple[T, Cost]:
    """Do the work and return its result with the CPU seconds (all threads) and the wall seconds it took."""
    cpu, wall = time.process_time(), time.perf_counter()
    result = work()
    return result, Cost(time.process_time() - cpu, time.perf_counter() - wall)


def size_on_disk(model_path: Path) -> int:
    """Return the bytes of the model, with the files of external weights that stand beside it under its name."""
    return sum(path.stat().st_size for path in model_path.parent.glob(f"{model_path.name}*"))


def run_child(module: str, arguments: Sequence[str], memory_cap: int | None = None) -> Child:
    """Run a module of ours in its own process, alone, and account for it.

    ``memory_cap`` limits the address space in bytes, so that a greedy quantizer fails by itself instead of taking the
    machine along.
    """
    command = [sys.executable, "-m", module, *arguments]
    start = time.perf_counter()
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as process:
        if memory_cap is not None:
            resource.prlimit(process.pid, resource.RLIMIT_AS, (memory_cap, memory_cap))
        stderr = process.stderr.read() if process.stderr else ""
        # wait4 alone tells the usage of just this child.
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    cpu = usage.ru_utime + usage.ru_stime
    return Child(process.returncode, stderr, cpu, time.perf_counter() - start, usage.ru_maxrss * 1024)


def _repeats(run: Run, feed: Feed) -> int:
    """Warm up, and return how often a feed must run for a sample long enough to time."""
    for _ in range(3):
        run(feed)
    return max(1, round(LEAST_SAMPLE_SECONDS / _sample(run, feed, 1)))


def _sample(run: Run, feed: Feed, repeats: int) -> float:
    """Return the mean seconds of ``repeats`` runs."""
    start = time.perf_counter()
    for _ in range(repeats):
        run(feed)
    return (time.perf_counter() - start) / repeats
