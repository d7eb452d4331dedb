"""The log that AMCT's own functions and commands write: on the screen, and in ``amct_log/amct_onnx.log``."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

LOG_FILE = Path("amct_log") / "amct_onnx.log"

_FORMAT = "%(asctime)s - %(levelname)s - [AMCT]:%(message)s"


@contextmanager
def amct_log(function: str) -> Iterator[logging.Logger]:
    """Let the package log like AMCT while one of its functions runs.

    ``AMCT_LOG_LEVEL`` and ``AMCT_LOG_FILE_LEVEL`` (names of levels, by default INFO) choose what is shown and what is
    written. Where the folder cannot be written to, there is no file.
    """
    package = logging.getLogger("amct_onnx")
    handlers: list[logging.Handler] = []
    if not package.handlers:
        handlers.append(_leveled(logging.StreamHandler(sys.stderr), "AMCT_LOG_LEVEL"))
    try:
        LOG_FILE.parent.mkdir(exist_ok=True)
        handlers.append(_leveled(logging.FileHandler(LOG_FILE, encoding="utf-8"), "AMCT_LOG_FILE_LEVEL"))
    except OSError as error:
        package.warning("%s cannot be written: %s", LOG_FILE, error.strerror)
    before = package.level
    package.setLevel(min([before or logging.WARNING, *(handler.level for handler in handlers)]))
    for handler in handlers:
        handler.setFormatter(logging.Formatter(_FORMAT))
        package.addHandler(handler)
    try:
        yield logging.LoggerAdapter(package, {"function": function}).logger
    finally:
        package.setLevel(before)
        for handler in handlers:
            package.removeHandler(handler)
            handler.close()


def _leveled(handler: logging.Handler, variable: str) -> logging.Handler:
    level = logging.getLevelName(os.environ.get(variable, "INFO").upper())
    handler.setLevel(level if isinstance(level, int) else logging.INFO)
    return handler
