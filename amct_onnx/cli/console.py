"""What a person sees: results on stdout, everything else on stderr."""

from __future__ import annotations

import io
import json
import logging
import os
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from time import monotonic
from typing import Any

from tabulate import tabulate
from tqdm import tqdm

PROGRESS_DELAY_SECONDS = 2.0


def make_streams_tolerant() -> None:
    """Escape what the terminal's encoding cannot show, such as layer names in other scripts, instead of failing.

    A stream that was closed before we started becomes one that goes nowhere.
    """
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


@dataclass(frozen=True)
class Console:
    """Where output goes.

    Attributes:
        quiet: only results and errors.
        verbose: also timings.
        as_json: one JSON object on stdout, all text on stderr.
    """

    quiet: bool = False
    verbose: bool = False
    as_json: bool = False

    def say(self, text: str = "") -> None:
        """A line for a person; on stderr when stdout belongs to JSON, nowhere when quiet."""
        if self.quiet:
            return
        stream = sys.stderr if self.as_json else sys.stdout
        stream.write(text + "\n")

    def table(self, headers: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
        """A table for a person."""
        rows = list(rows)
        if rows:
            self.say(tabulate(rows, headers=headers, disable_numparse=True))

    def result(self, data: dict[str, Any]) -> None:
        """The result as JSON, when asked for."""
        if self.as_json:
            is_unicode = (sys.stdout.encoding or "utf-8").lower().startswith("utf")
            sys.stdout.write(json.dumps(data, indent=2, ensure_ascii=not is_unicode) + "\n")

    def progress(self, description: str, total: int | None = None) -> Any:
        """A wrapper of iterables that shows a bar from two seconds after now on, on a terminal only.

        The seconds run through all walks over the data, since many short ones are as long a wait as one.
        """
        shown_from = monotonic() + PROGRESS_DELAY_SECONDS

        def wrap(items: Iterable[Any]) -> Iterable[Any]:
            bar: Iterable[Any] = tqdm(
                items,
                desc=description,
                total=total,
                delay=max(0.0, shown_from - monotonic()),
                disable=True if self.quiet else None,
                file=sys.stderr,
                leave=False,
            )
            return bar

        return wrap

    def install_logging(self) -> None:
        """Let the package's warnings (and with -v its details) reach stderr."""
        package = logging.getLogger("amct_onnx")
        package.handlers.clear()
        handler = logging.StreamHandler(sys.stderr)
        handler.setFormatter(logging.Formatter("%(levelname)s: %(message)s"))
        package.addHandler(handler)
        package.propagate = False
        package.setLevel(logging.ERROR if self.quiet else logging.INFO if self.verbose else logging.WARNING)
