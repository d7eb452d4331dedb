"""How compressed models did beside the float model."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from amct_onnx.api.result import TrialResult
from amct_onnx.cli.console import Console
from amct_onnx.wording import counted

_WORST = 3
"""Layers that are named as losing most."""
_FASTER = "float or another runtime may serve better"
_FASTER_PRUNED = "multiples of 8 channels suit kernels better (--saving, or --ascend-optimized for 16)"


_SAME_SPEED = 0.05
"""A few runs tell no smaller differences between a ratio of times and 1."""


def show_trials(console: Console, trials: Sequence[TrialResult]) -> None:
    """A line for each model that was tried."""
    for trial in trials:
        snr = f"output SNR {decibels(trial.snr_db)}{_spread(trial)}"
        outcome = f"does not run: {trial.error}" if trial.error else snr
        noisy = ", more noise than signal" if trial.snr_db is not None and trial.snr_db < 0 else ""
        console.say(f"tried {trial.form} on the first {counted(trial.feeds, 'feed')}: {outcome}{noisy}{_speed(trial)}")


def say_unfitted(console: Console) -> None:
    """What a user should know of a model that lost channels or weights, and whose others stayed as they were."""
    console.say("note: no weight was fitted to make up for what went; train the model before you rely on it")


def say_losses(console: Console, losses: Mapping[str, float]) -> None:
    """Which fitted layers could make up for least of what went."""
    worst = sorted(losses.items(), key=lambda one: -one[1])[:_WORST]
    if worst:
        named = ", ".join(f"{name} {share:.1%}" for name, share in worst)
        console.say(f"losing most of their results' variance on the data: {named}")


def check_trials(console: Console, trials: Sequence[TrialResult], wanted: float | None) -> int:
    """1 when a model does not run, or when its signal-to-noise ratio is below what was asked for."""
    failures = [f"{trial.form} does not run" for trial in trials if trial.error]
    if wanted is not None:
        failures += [
            f"{trial.form}: output SNR {decibels(trial.snr_db)}, asked for {wanted:g} dB"
            for trial in trials
            if not trial.error and not (trial.snr_db is not None and trial.snr_db >= wanted)
        ]
        if not trials:
            failures.append("no model could be tried, so no SNR is known")
    for failure in failures:
        console.say(f"check failed: {failure}")
    return 1 if failures else 0


def decibels(value: float | None) -> str:
    """A ratio in dB as text."""
    if value is None or math.isnan(value):
        return "not comparable"
    return "without any difference" if value == math.inf else f"{value:.1f} dB"


def _spread(trial: TrialResult) -> str:
    """How far apart single feeds lie, which tells how much a difference between two models means."""
    known = [ratio for ratio in trial.snr_db_by_feed if not math.isnan(ratio)]
    if len(known) < 2 or min(known) == max(known):
        return ""
    return f" (single feeds: {min(known):.1f} to {max(known):.1f})"


def _speed(trial: TrialResult) -> str:
    speed_up = trial.speed_up
    if speed_up is None:
        return ""
    if abs(speed_up - 1) < _SAME_SPEED:
        return ", as fast as float in a few runs here"
    if speed_up > 1:
        return f", {speed_up:.1f} times as fast as float in a few runs here"
    slower = f"slower than float in a few runs here ({speed_up:.2f} times its speed)"
    return f", {slower}: {_FASTER_PRUNED if trial.form in ('pruned', 'modified') else _FASTER}"
