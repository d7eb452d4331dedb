"""The ``amct_onnx`` command."""

from amct_onnx.cli.main import main

__all__ = ["main"]
