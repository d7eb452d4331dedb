"""Try the compressed models out before anybody relies on them."""

from __future__ import annotations

import math
from collections.abc import Container, Iterable, Mapping, Sequence
from itertools import chain
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
from amct_onnx.runtime.latency import time_runs
from amct_onnx.runtime.memory import release_freed

FITTED_TO = "layers were fitted to the very feeds that the model was tried on; measure your score on others"
"""What a report says where a trial flatters."""


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
    reference = open_session(proto, base_dir=base_dir)
    session: InferenceSession | None = reference
    names, wanted = tensor_outputs(reference), _results(reference, samples)
    del reference
    trials: dict[OutputForm, TrialResult] = {}
    # The float model stays open for what is timed beside it, and no longer: no more than two sessions at a time.
    for form in sorted(runnable, key=lambda form: form not in timed):
        session = session if form in timed else None
        trials[form] = _try(form.value, models[form], names, samples, wanted, beside=session)
        release_freed(models[form].nbytes)
    return tuple(trials[form] for form in runnable)


def try_pruned(
    proto: ModelProto, base_dir: Path | None, built: BuiltModel, samples: Sequence[Feed]
) -> tuple[TrialResult, ...]:
    """The same of a model that lost channels; its speed is compared, too."""
    return _try_one("pruned", proto, base_dir, built, samples, is_timed=True)


def try_sparse(
    proto: ModelProto, base_dir: Path | None, built: BuiltModel, samples: Sequence[Feed]
) -> tuple[TrialResult, ...]:
    """The same of a model whose weights were thinned out; onnxruntime computes with every zero, so nothing is timed."""
    return _try_one("sparse", proto, base_dir, built, samples, is_timed=False)


def try_modified(
    proto: ModelProto, base_dir: Path | None, built: BuiltModel, samples: Sequence[Feed], *, is_timed: bool
) -> tuple[TrialResult, ...]:
    """The same of a float model that lost channels, weights or both and is not quantized; timed where it is smaller."""
    return _try_one("modified", proto, base_dir, built, samples, is_timed=is_timed)


def _try_one(
    name: str, proto: ModelProto, base_dir: Path | None, built: BuiltModel, samples: Sequence[Feed], *, is_timed: bool
) -> tuple[TrialResult, ...]:
    if not samples or not _fits(built):
        return ()
    session = open_session(proto, base_dir=base_dir)
    names, wanted = tensor_outputs(session), _results(session, samples)
    return (_try(name, built, names, samples, wanted, beside=session if is_timed else None),)


def _results(session: InferenceSession, samples: Sequence[Feed]) -> list[list[Array]]:
    """What the float model gives; copies, for views would keep all memory of the session."""
    names = tensor_outputs(session)
    return [[array.copy() for array in fetch(session, names, sample)] for sample in samples]


def _speed_up(reference: InferenceSession, tried: InferenceSession, sample: Feed) -> float:
    # The fastest runs: on a busy machine the median of so few tells more of what else runs there.
    seconds = time_runs({"float": reference, "tried": tried}, sample, seconds=0.1, rounds=3, warm_up=False)
    return min(seconds["float"]) / min(seconds["tried"])


def signal_to_noise(wanted: Iterable[Array], got: Iterable[Array]) -> float:
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
    name: str,
    built: BuiltModel,
    names: Sequence[str],
    samples: Sequence[Feed],
    wanted: Sequence[list[Array]],
    *,
    beside: InferenceSession | None,
) -> TrialResult:
    """Run one model, one sample's results at a time, and time it beside another session if there is one."""
    try:
        session = open_session(built)
        got = chain.from_iterable(fetch(session, names, sample) for sample in samples)
        snr_db = signal_to_noise(chain.from_iterable(wanted), got)
    except AmctError as error:
        return TrialResult(name, None, str(error), feeds=len(samples))
    speed_up = None if beside is None else _speed_up(beside, session, samples[0])
    return TrialResult(name, snr_db, feeds=len(samples), speed_up=speed_up)


def _fits(built: BuiltModel) -> bool:
    return built.nbytes < 2**31 - 2**26
