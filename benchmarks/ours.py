"""amct_onnx as a user calls it, with default settings."""

from __future__ import annotations

from pathlib import Path

import amct_onnx
from benchmarks.workloads.base import Feed


def quantize(
    model_path: Path, feeds: list[Feed], prefix: Path, formats: tuple[str, ...] | None = None
) -> dict[str, Path]:
    """Quantize the model and save it under ``prefix``, in the given formats or, by default, in all of them."""
    chosen = {} if formats is None else {"formats": formats}
    return dict(amct_onnx.quantize(model_path, feeds, **chosen).save(prefix))
