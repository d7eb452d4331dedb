"""Recorders: from what observers show during a user's own runs to a record file that grows with every run."""

from __future__ import annotations

import logging
import threading
import time
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from amct_onnx.analyse.algorithms import choose_activation
from amct_onnx.analyse.algorithms.balance import balance_factors
from amct_onnx.analyse.algorithms.uniform import half_precision
from amct_onnx.analyse.balance import ChannelMaxima
from amct_onnx.analyse.obstacles import data_obstacle, scale_obstacle
from amct_onnx.analyse.recorder_settings import RecorderSettings, WatchedChannels, WatchedRange
from amct_onnx.analyse.statistics import TensorStatistics
from amct_onnx.graph.weights import Array
from amct_onnx.record import LayerRecord, RecordHeader, load_record, save_record

logger = logging.getLogger(__name__)

_WRITING_SHARE = 0.5
"""A record is written again before the last run only when writing took less than this share of the time since."""


@dataclass
class _Recorder:
    """What was seen through the observers of one model."""

    ranges: dict[str, TensorStatistics] = field(default_factory=dict)
    channels: dict[str, ChannelMaxima] = field(default_factory=dict)
    faults: list[str] = field(default_factory=list)
    runs: int = 0
    is_done: bool = False
    written_at: float = 0.0
    writing_took: float = 0.0
    stamp: int = 0
    unwritten: RecorderSettings | None = None


class Recorders:
    """The recorders of a process, told by the observers of any number of sessions and threads."""

    def __init__(self) -> None:
        self._recorders: dict[str, _Recorder] = {}
        self._lock = threading.Lock()

    def forget(self, recorder: str) -> None:
        """Start over: the model was made anew."""
        with self._lock:
            self._recorders.pop(recorder, None)

    def take(self, recorder: str) -> dict[str, TensorStatistics]:
        """What was seen of each tensor, by the observers' keys; the recorder starts over."""
        with self._lock:
            return self._recorders.pop(recorder, _Recorder()).ranges

    def observe(self, recorder: str, key: str, array: Array, *, channels: int, axis: int) -> None:
        """A tensor passes an observer; nothing of it is kept but statistics."""
        with self._lock:
            own = self._recorders.setdefault(recorder, _Recorder())
            if own.is_done:
                return
            if channels:
                own.channels.setdefault(key, ChannelMaxima(channels, axis)).update(array)
            else:
                own.ranges.setdefault(key, TensorStatistics()).update(array)

    def end_run(self, recorder: str, settings: str) -> None:
        """A run is over: count it, and bring the record up to date."""
        with self._lock:
            own = self._recorders.setdefault(recorder, _Recorder())
            own.runs += 1
            wanted = RecorderSettings.from_json(settings)
            if not wanted.record:
                return
            if own.is_done:
                if own.runs == wanted.batch_num + 1:
                    logger.warning(
                        "batch_num is %d: this run and those after it add nothing to %s",
                        wanted.batch_num,
                        wanted.record,
                    )
                return
            own.is_done = own.runs >= wanted.batch_num
            begin = time.monotonic()
            if own.is_done or own.writing_took <= _WRITING_SHARE * (begin - own.written_at):
                _write(own, wanted)
                own.written_at = time.monotonic()
                own.writing_took = own.written_at - begin
            else:
                own.unwritten = wanted

    def flush(self, record: str) -> None:
        """Bring a record up to date with the runs that it does not hold yet."""
        wanted = Path(record).resolve()
        with self._lock:
            for own in self._recorders.values():
                settings = own.unwritten
                if settings is not None and wanted.is_file() and Path(settings.record).resolve() == wanted:
                    _write(own, settings)

    def flush_untouched(self) -> None:
        """The same for every record, when the process ends; not for one that is gone or was changed by others."""
        with self._lock:
            for own in self._recorders.values():
                settings = own.unwritten
                if settings is not None and _stamp(settings.record) == own.stamp:
                    try:
                        _write(own, settings)
                    except Exception as error:
                        logger.error("calibration: %s: %s", type(error).__name__, error)

    def fault(self, recorder: str, error: Exception) -> None:
        """An observer failed; the record will say so, for nothing can be raised from where it runs."""
        text = f"{type(error).__name__}: {error}"
        logger.error("calibration: %s", text)
        with self._lock:
            faults = self._recorders.setdefault(recorder, _Recorder()).faults
            if text not in faults:
                faults.append(text)


RECORDERS = Recorders()
"""Those of this process."""


def _write(own: _Recorder, settings: RecorderSettings) -> None:
    """Put what is known by now into the record file, in place of what it says of the same fields."""
    record = load_record(settings.record).record
    layers = dict(record.layers)
    for watched in settings.ranges:
        seen = own.ranges.get(watched.key)
        if seen is not None:
            entry = layers.get(watched.layer, LayerRecord())
            layers[watched.layer] = _with_scale(entry, watched, seen, own, settings)
    for balanced in settings.channels:
        maxima = own.channels.get(balanced.key)
        if maxima is not None:
            entry = layers.get(balanced.layer, LayerRecord())
            layers[balanced.layer] = replace(entry, tensor_balance_factor=_factors(balanced, maxima))
    header = replace(record.header or RecordHeader(), runs=(own.runs, settings.batch_num), faults=tuple(own.faults))
    save_record(replace(record, layers=layers, header=header), settings.record)
    own.stamp = _stamp(settings.record)
    own.unwritten = None


def _stamp(path: str) -> int:
    """When a file was written last; -1 when it is gone."""
    try:
        return Path(path).stat().st_mtime_ns
    except OSError:
        return -1


def _with_scale(
    entry: LayerRecord, watched: WatchedRange, seen: TensorStatistics, own: _Recorder, settings: RecorderSettings
) -> LayerRecord:
    """A layer's entry with scale and offset, or without while no usable scale can be chosen."""
    obstacle = data_obstacle(seen, is_float=True)
    if obstacle is None:
        scale, offset = choose_activation(watched.options, seen.distribution(), bounds=watched.bounds)
        scale = half_precision(scale) if settings.force_fp16 else scale
        obstacle = scale_obstacle(scale, seen)
    if obstacle is not None:
        _note(own, watched.layer, obstacle[0])
        return (
            replace(entry, scale_h=None, offset_h=None)
            if watched.is_state
            else replace(entry, scale_d=None, offset_d=None)
        )
    if seen.nan or seen.inf:
        what = "hidden state" if watched.is_state else "input"
        _note(own, watched.layer, f"its {what} held {seen.nan} NaN and {seen.inf} infinite values, which are left out")
    if watched.is_state:
        return replace(entry, scale_h=scale, offset_h=offset)
    return replace(entry, scale_d=scale, offset_d=offset, act_type=f"INT{watched.options.bits}")


def _note(own: _Recorder, layer: str, fault: str) -> None:
    """Keep what is wrong with a layer's data, once all of it has been seen."""
    text = f"layer '{layer}': {fault}"
    if own.is_done and text not in own.faults:
        own.faults.append(text)


def _factors(balanced: WatchedChannels, maxima: ChannelMaxima) -> tuple[float, ...]:
    weights = np.array(balanced.weight_maxima, np.float32)
    return tuple(balance_factors(maxima.maxima, weights, migration_strength=balanced.strength).tolist())
