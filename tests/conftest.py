"""What holds for all tests."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def _package_logger() -> Iterator[None]:
    """Commands set the package's logger up for a process of their own; the next test finds it as it was."""
    package = logging.getLogger("amct_onnx")
    handlers, propagate, level = list(package.handlers), package.propagate, package.level
    yield
    package.handlers[:] = handlers
    package.propagate = propagate
    package.setLevel(level)
