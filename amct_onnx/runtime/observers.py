"""The operators of a calibration model as Python functions, and the session options that know them.

They are declared when this module is imported, which must be before any session that uses them; only then is
onnxruntime-extensions needed. An exception inside such an operator would end the process, so nothing leaves them: what
goes wrong is handed to the listener.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

import numpy as np
import onnxruntime as ort

from amct_onnx.errors import UsageError
from amct_onnx.graph.weights import Array
from amct_onnx.passes.insert_observers import DOMAIN, OBSERVE, RUN_END

try:
    from onnxruntime_extensions import PyCustomOpDef, get_library_path, onnx_op
except ImportError as error:
    raise UsageError(
        "amct_onnx.AMCT_SO needs onnxruntime-extensions; install it with: pip install onnxruntime-extensions"
    ) from error

_NOTHING = np.zeros(0, np.float32)


class Listener(Protocol):
    """Who is told what the operators see."""

    def observe(self, recorder: str, key: str, array: Array, *, channels: int, axis: int) -> None:
        """A tensor passes; it may not be kept."""

    def end_run(self, recorder: str, settings: str) -> None:
        """A run is over."""

    def fault(self, recorder: str, error: Exception) -> None:
        """One of the others failed."""


_listeners: list[Listener] = []


def session_options(listener: Listener) -> ort.SessionOptions:
    """Options for sessions whose observers tell `listener`, the one of the whole process."""
    _listeners[:] = [listener]
    options = ort.SessionOptions()
    options.register_custom_ops_library(get_library_path())
    return options


def _observe(array: Array, **attrs: Any) -> Array:
    if attrs["key"]:
        for listener in _listeners:
            try:
                channels, axis = attrs["channels"], attrs["axis"]
                listener.observe(attrs["recorder"], attrs["key"], array, channels=channels, axis=axis)
            except Exception as error:
                listener.fault(attrs["recorder"], error)
    return _NOTHING


def _end_run(_ends: Array, **attrs: Any) -> Array:
    for listener in _listeners:
        try:
            listener.end_run(attrs["recorder"], attrs["settings"])
        except Exception as error:
            listener.fault(attrs["recorder"], error)
    return _NOTHING


def _declare(name: str, function: Callable[..., Array], attrs: Mapping[str, Any]) -> None:
    floats = [PyCustomOpDef.dt_float]
    onnx_op(op_type=f"{DOMAIN}::{name}", inputs=floats, outputs=floats, attrs=dict(attrs))(function)


_TEXT, _NUMBER = PyCustomOpDef.dt_string, PyCustomOpDef.dt_int64
_declare(OBSERVE, _observe, {"recorder": _TEXT, "key": _TEXT, "channels": _NUMBER, "axis": _NUMBER})
_declare(RUN_END, _end_run, {"recorder": _TEXT, "settings": _TEXT})
