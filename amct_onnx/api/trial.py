"""Try the compressed models out before anybody relies on them."""

from __future__ import annotations

import math
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
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
    return _compare(wanted, got).snr_db


@dataclass(frozen=True)
class _Comparison:
    """Sums over the values of some float arrays and others in their place: x^2, (x - y)^2, and how many there are."""

    signal: float = 0.0
    noise: float = 0.0
    compared: int = 0

    def __add__(self, other: _Comparison) -> _Comparison:
        return _Comparison(self.signal + other.signal, self.noise + other.noise, self.compared + other.compared)

    @property
    def snr_db(self) -> float:
        """Decibel; inf when equal, nan when there is nothing to compare."""
        if not self.compared or not math.isfinite(self.noise):
            return math.nan
        if self.noise == 0:
            return math.inf
        return 10 * math.log10(self.signal / self.noise) if self.signal > 0 else -math.inf


def _compare(wanted: Iterable[Array], got: Iterable[Array]) -> _Comparison:
    """Over the finite values of all float arrays; the noise is nan where shapes differ."""
    total = _Comparison()
    for x, y in zip(wanted, got, strict=True):
        if x.shape != y.shape:
            return _Comparison(noise=math.nan)
        if x.dtype.kind == "f":
            finite = np.isfinite(x)
            with np.errstate(over="ignore", invalid="ignore"):
                signal = float(np.sum(np.square(x[finite], dtype=np.float64)))
                noise = float(np.sum(np.square(x[finite].astype(np.float64) - y[finite])))
            total += _Comparison(signal, noise, int(finite.sum()))
    return total


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
        compared = [_compare(want, fetch(session, names, sample)) for want, sample in zip(wanted, samples, strict=True)]
    except AmctError as error:
        return TrialResult(name, None, str(error), feeds=len(samples))
    speed_up = None if beside is None else _speed_up(beside, session, samples[0])
    return TrialResult(
        name,
        sum(compared, _Comparison()).snr_db,
        feeds=len(samples),
        speed_up=speed_up,
        snr_db_by_feed=tuple(one.snr_db for one in compared),
    )


def _fits(built: BuiltModel) -> bool:
    return built.nbytes < 2**31 - 2**26
