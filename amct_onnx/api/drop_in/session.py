"""The session options whose observers tell the recorders of this process."""

from __future__ import annotations

import atexit
from functools import cache
from typing import Any

from amct_onnx.analyse.recorder import RECORDERS


@cache
def amct_session_options() -> Any:
    """``amct_onnx.AMCT_SO``: session options under which a calibration model runs.

    Raises:
        UsageError: onnxruntime-extensions is not installed.
    """
    from amct_onnx.runtime.observers import session_options

    atexit.register(RECORDERS.flush_untouched)
    return session_options(RECORDERS)
