"""Statistics of what layers inside control-flow bodies read, which no output of the model can show.

Observers of the calibration model see it (:mod:`amct_onnx.analyse.calibration_model`); they need
onnxruntime-extensions, and data that can be walked once more.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import islice
from types import MappingProxyType
from typing import Any

from amct_onnx.analyse.calibration_model import range_model, result_key, shared_keys, state_key
from amct_onnx.analyse.engine import Calibration
from amct_onnx.analyse.feeds import iterate_feeds, walks_once
from amct_onnx.analyse.obstacles import Obstacle
from amct_onnx.analyse.options import PlanOptions
from amct_onnx.analyse.recorder import RECORDERS
from amct_onnx.analyse.statistics import TensorStatistics
from amct_onnx.analyse.walk import Progress, is_empty
from amct_onnx.graph.parts import Tensor
from amct_onnx.passes.locate import IN_BODY, Layer
from amct_onnx.passes.recurrent import RecurrentLayer
from amct_onnx.rewrite import Prepared
from amct_onnx.runtime import fetch, input_specs, open_session


def statistics_key(layer: str) -> str:
    """Where a calibration keeps them: tensors of different bodies may have one name, layers have not."""
    return f"input of {layer}"


def can_watch() -> bool:
    """Whether observers can run here."""
    return importlib.util.find_spec("onnxruntime_extensions") is not None


def obstacle_to_watching(data: Any) -> Obstacle | None:
    """Why the layers inside bodies cannot be watched while this data runs."""
    if isinstance(data, Calibration):
        return Obstacle(
            "it lies inside a control-flow body, of which these statistics hold nothing",
            "calibrate on data with onnxruntime-extensions installed",
        )
    if not can_watch():
        return Obstacle(*IN_BODY)
    if walks_once(data):
        return Obstacle(
            "it lies inside a control-flow body, for which the data is walked again, and a generator or reader can "
            "be walked once",
            "give a list",
        )
    return None


def watch_bodies(
    prepared: Prepared,
    layers: Sequence[Layer | RecurrentLayer],
    options: PlanOptions,
    data: Any,
    *,
    feeds: int,
    sha256: str,
    results: Mapping[str, Tensor] = MappingProxyType({}),
    progress: Progress | None = None,
) -> dict[str, TensorStatistics]:
    """Run the model with observers, and return what was seen, by :func:`statistics_key`.

    Args:
        prepared: the model; not changed.
        layers: the layers inside bodies.
        options: how ranges will be chosen.
        data: calibration feeds, which can be walked again.
        feeds: how many of them to run.
        sha256: digest of the source model.
        results: further tensors to watch, layer name -> its result.
        progress: wraps the iterator of feeds.

    Returns:
        Statistics of the layers that data reached.
    """
    # Only where there is something to watch, since it is an optional dependency.
    from amct_onnx.runtime.observers import session_options

    made = range_model(prepared, layers, (), replace(options, feeds=feeds), "", sha256, results)
    session = open_session(made.model, options=session_options(RECORDERS))
    RECORDERS.forget(made.recorder)
    outputs = [output.name for output in session.get_outputs()]
    inputs = input_specs(session)
    items = islice((feed for feed in iterate_feeds(data, inputs) if not is_empty(feed, inputs)), feeds)
    for feed in progress(items) if progress else items:
        fetch(session, outputs, feed)
    seen = RECORDERS.take(made.recorder)
    keys = shared_keys(prepared.model, layers)
    found = {statistics_key(layer.name): keys[layer.name] for layer in layers}
    found.update({state_key(layer.name): state_key(layer.name) for layer in layers})
    found.update({result_key(name): result_key(name) for name in results})
    return {name: seen[key] for name, key in found.items() if key in seen}
