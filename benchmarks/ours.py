"""amct_onnx as a user calls it, with default settings."""

from __future__ import annotations

from pathlib import Path

import amct_onnx
from benchmarks.workloads.base import Feed


def quantize(model_path: Path, feeds: list[Feed], prefix: Path, formats: tuple[str, ...]) -> dict[str, Path]:
    """Quantize the model and save it in the given formats under ``prefix``."""
    result = amct_onnx.quantize(model_path, feeds, formats=formats)
    return {form: Path(path) for form, path in result.save(prefix).items()}
