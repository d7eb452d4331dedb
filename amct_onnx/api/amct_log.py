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
def amct_log() -> Iterator[logging.Logger]:
    """Let the package log like AMCT while one of its functions runs.

    ``AMCT_LOG_LEVEL`` and ``AMCT_LOG_FILE_LEVEL`` (names of levels, by default INFO) choose what is shown and what is
    written. A program that has set up logging itself shows what it always does; where the folder cannot be written to,
    there is no file.
    """
    package = logging.getLogger("amct_onnx")
    before, others = package.getEffectiveLevel(), [(handler, handler.level) for handler in package.handlers]
    own, level_of_package = _handlers(package), package.level
    try:
        for handler, level in others:
            # The level of the package falls for the file's sake; those that were there see what they saw before.
            handler.setLevel(max(level, before))
        for handler in own:
            package.addHandler(handler)
        package.setLevel(min([before, *(handler.level for handler in own)]))
        yield package
    finally:
        package.setLevel(level_of_package)
        for handler, level in others:
            handler.setLevel(level)
        for handler in own:
            package.removeHandler(handler)
            handler.close()


def _handlers(package: logging.Logger) -> list[logging.Handler]:
    handlers: list[logging.Handler] = []
    if not package.hasHandlers():
        handlers.append(_leveled(logging.StreamHandler(sys.stderr), "AMCT_LOG_LEVEL"))
    try:
        LOG_FILE.parent.mkdir(exist_ok=True)
        handlers.append(_leveled(logging.FileHandler(LOG_FILE, encoding="utf-8"), "AMCT_LOG_FILE_LEVEL"))
    except OSError as error:
        package.warning("%s cannot be written: %s", LOG_FILE, error.strerror)
    for handler in handlers:
        handler.setFormatter(logging.Formatter(_FORMAT))
    return handlers


def _leveled(handler: logging.Handler, variable: str) -> logging.Handler:
    level = logging.getLevelName(os.environ.get(variable, "INFO").upper())
    handler.setLevel(level if isinstance(level, int) else logging.INFO)
    return handler
