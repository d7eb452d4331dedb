"""One export, as a user would write it."""

from __future__ import annotations

import warnings
from pathlib import Path

import torch
from torch import Tensor, nn

from models.makers.files import replacing

OPSET = 17


def export(
    model: nn.Module,
    example: dict[str, Tensor],
    output: str,
    axes: dict[int, str],
    path: Path,
) -> None:
    """Export ``model`` to ``path``; ``axes`` names the dimensions that stay free in the inputs and in the output."""
    names = list(example)
    with replacing(path) as temporary, warnings.catch_warnings():
        # PyTorch calls its TorchScript exporter deprecated; most models in use were written by it.
        warnings.simplefilter("ignore", DeprecationWarning)
        torch.onnx.export(
            model.eval(),
            tuple(example.values()),
            str(temporary),
            dynamo=False,
            opset_version=OPSET,
            input_names=names,
            output_names=[output],
            dynamic_axes=dict.fromkeys([*names, output], axes),
        )
    print(f"{path}: {path.stat().st_size / 1e6:.1f} MB")
