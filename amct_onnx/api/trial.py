"""Try the compressed models out before anybody relies on them."""

from __future__ import annotations

import math
from collections.abc import Container, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from onnx import ModelProto

from amct_onnx.analyse.feeds import Feed
from amct_onnx.api.result import TrialResult
from amct_onnx.errors import AmctError
from amct_onnx.graph import BuiltModel
from amct_onnx.graph.weights import Array
from amct_onnx.rewrite import OutputForm
from amct_onnx.runtime import InferenceSession, fetch, open_session, tensor_outputs
from amct_onnx.runtime.latency import compare_latency


def try_models(
    proto: ModelProto,
    base_dir: Path | None,
    models: Mapping[OutputForm, BuiltModel],
    samples: Sequence[Feed],
    *,
    timed: Container[OutputForm] = (),
) -> tuple[TrialResult, ...]:
    """Run each runnable form on `samples` beside the float model.

    Models whose weights exceed one protobuf message are left out.

    Args:
        proto: the float model.
        base_dir: folder of its external weights.
        models: the compressed models.
        samples: feeds.
        timed: forms whose speed is compared with the float model's.
    """
    runnable = [form for form in models if form is not OutputForm.ASCEND and _fits(models[form])]
    if not runnable or not samples:
        return ()
    session = open_session(proto, base_dir=base_dir)
    names = tensor_outputs(session)
    wanted = [fetch(session, names, sample) for sample in samples]
    trials = []
    for form in runnable:
        trial, tried = _try(form, models[form], names, samples, wanted)
        if tried is not None and form in timed:
            trial = replace(trial, speed_up=_speed_up(session, tried, samples[0]))
        trials.append(trial)
    return tuple(trials)


def _speed_up(reference: InferenceSession, tried: InferenceSession, sample: Feed) -> float:
    seconds = compare_latency({"float": reference, "tried": tried}, sample, seconds=0.1, rounds=3, warm_up=False)
    return seconds["float"] / seconds["tried"]


def signal_to_noise(wanted: Sequence[Array], got: Sequence[Array]) -> float:
    """``10 log10(sum(x^2) / sum((x - y)^2))`` over the finite values of all float arrays, in float64.

    inf when equal, nan when there is nothing to compare.
    """
    signal = noise = 0.0
    compared = 0
    for x, y in zip(wanted, got, strict=True):
        if x.shape != y.shape:
            return math.nan
        if x.dtype.kind == "f":
            finite = np.isfinite(x)
            compared += int(finite.sum())
            with np.errstate(over="ignore", invalid="ignore"):
                signal += float(np.sum(np.square(x[finite], dtype=np.float64)))
                noise += float(np.sum(np.square(x[finite].astype(np.float64) - y[finite])))
    if not compared or not math.isfinite(noise):
        return math.nan
    return math.inf if noise == 0 else 10 * math.log10(signal / noise) if signal > 0 else -math.inf


def _try(
    form: OutputForm, built: BuiltModel, names: Sequence[str], samples: Sequence[Feed], wanted: Sequence[list[Array]]
) -> tuple[TrialResult, InferenceSession | None]:
    try:
        session = open_session(built.to_proto())
        got = [fetch(session, names, sample) for sample in samples]
    except AmctError as error:
        return TrialResult(form.value, None, str(error), feeds=len(samples)), None
    pairs = [(x, y) for xs, ys in zip(wanted, got, strict=True) for x, y in zip(xs, ys, strict=True)]
    snr_db = signal_to_noise([x for x, _ in pairs], [y for _, y in pairs])
    return TrialResult(form.value, snr_db, feeds=len(samples)), session


def _fits(built: BuiltModel) -> bool:
    return built.nbytes < 2**31 - 2**26
