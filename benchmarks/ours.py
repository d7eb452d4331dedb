"""amct_onnx as a user calls it, with default settings."""

from __future__ import annotations

from pathlib import Path

import amct_onnx
from benchmarks.workloads.base import Feed


def quantize(
    model_path: Path, feeds: list[Feed], prefix: Path, formats: tuple[str, ...] | None = None
) -> dict[str, Path]:
    """Quantize the model and save it under ``prefix``, in the given formats or, by default, in all of them."""
    if formats is None:
        return dict(amct_onnx.quantize(model_path, feeds).save(prefix))
    return dict(amct_onnx.quantize(model_path, feeds, formats=formats).save(prefix))
