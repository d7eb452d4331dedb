"""When a progress bar shows."""

from __future__ import annotations

import io
import sys

import pytest

from amct_onnx.cli import console
from amct_onnx.cli.console import PROGRESS_DELAY_SECONDS, Console


class Terminal(io.StringIO):
    """A stream that says it is one."""

    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(("quiet", "is_shown"), [(False, True), (True, False)])
def test_the_delay_runs_through_all_walks(quiet: bool, is_shown: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr(console, "monotonic", lambda: now[0])
    monkeypatch.setattr(sys, "stderr", terminal := Terminal())
    progress = Console(quiet=quiet).progress("fitting", 3)
    shown = []
    for seconds in (0.0, PROGRESS_DELAY_SECONDS - 1, PROGRESS_DELAY_SECONDS + 1):
        now[0] = 100.0 + seconds
        assert list(progress(range(3))) == [0, 1, 2]
        shown.append("fitting" in terminal.getvalue())
    assert shown == [False, False, is_shown]


def test_a_file_gets_no_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(console, "PROGRESS_DELAY_SECONDS", 0.0)
    monkeypatch.setattr(sys, "stderr", stream := io.StringIO())
    assert list(Console().progress("fitting", 3)(range(3))) == [0, 1, 2]
    assert stream.getvalue() == ""
