from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.measure import Child, cost, size_on_disk


@pytest.mark.parametrize(
    ("status", "stderr", "said"),
    [
        (0, "a warning", None),
        (-11, "", "crash (SIGSEGV)"),
        (1, "Traceback\nMemoryError", "memory cap"),
        (-6, "terminate called after throwing an instance of 'std::bad_alloc'", "memory cap"),
        (1, "Traceback\nValueError: no such node\n", "error: ValueError: no such node"),
    ],
)
def test_a_failure_is_told_in_few_words(status: int, stderr: str, said: str | None) -> None:
    assert Child(status, stderr, 0.0, 0.0, 0).failure == said


def test_cost_hands_the_result_through() -> None:
    result, spent = cost(lambda: sum(range(1000)))
    assert result == 499500
    assert spent.cpu >= 0
    assert spent.wall > 0


def test_external_weights_count_as_size(tmp_path: Path) -> None:
    (tmp_path / "model.onnx").write_bytes(b"12")
    (tmp_path / "model.onnx.data").write_bytes(b"345")
    assert size_on_disk(tmp_path / "model.onnx") == 5
