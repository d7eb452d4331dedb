"""Writing files so that a reader never meets half of one."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield a temporary name beside ``path``; what was written there takes its place when the block succeeds."""
    path.parent.mkdir(parents=True, exist_ok=True)
    # The ending stays last because some writers (numpy.savez) choose or add one by it.
    temporary = path.with_name(f".{os.getpid()}-{path.name}")
    try:
        yield temporary
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
