"""Export with free sizes: the batch, and the sides of images where the architecture allows."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor, nn

from benchmarks import zoo

_FIXED_SIDES = (
    "vit",
    "swin",
    "deit",
    "mixer",
    "beit",
    "224",
    "240",
    "256",
    "coat",
    "levit",
    "efficientformer",
    "transformers",
)
"""Parts of the names of architectures that take one size of images."""


def export(name: str, exporter: str, path: Path) -> None:
    """Write an architecture with as many free sizes as its exporter allows.

    Raises:
        Exception: torch cannot export it.
    """
    module, inputs = zoo.build(name)
    attempts = [_free_axes(name, inputs), {key: {0: "batch"} for key in inputs}, {}]
    if ".detection" in type(module.module).__module__:
        attempts = attempts[-1:]
    for last, free in zip((False, False, True)[-len(attempts) :], attempts, strict=True):
        try:
            _export(module, inputs, exporter, free, path)
            return
        except Exception:
            if last:
                raise


def _free_axes(name: str, inputs: dict[str, Tensor]) -> dict[str, dict[int, str]]:
    is_fixed = any(part in name.lower() for part in _FIXED_SIDES)
    return {
        key: {0: "batch", **({2: "height", 3: "width"} if tensor.ndim == 4 and not is_fixed else {})}
        for key, tensor in inputs.items()
    }


def _export(
    module: nn.Module, inputs: dict[str, Tensor], exporter: str, free: dict[str, dict[int, str]], path: Path
) -> None:
    is_dynamo = exporter == "dynamo"
    # Sizes of one are taken for constants, so a free batch has two samples.
    samples = tuple(torch.cat([one, one]) if 0 in free.get(key, {}) else one for key, one in inputs.items())
    dims = {axis: torch.export.Dim.DYNAMIC for axes in free.values() for axis in axes}
    with torch.no_grad():
        torch.onnx.export(
            module,
            samples,
            str(path),
            input_names=list(inputs),
            dynamo=is_dynamo,
            external_data=False,
            opset_version=None if is_dynamo else 17,
            dynamic_axes=free if free and not is_dynamo else None,
            dynamic_shapes=(tuple({axis: dims[axis] for axis in free[key]} for key in inputs),)
            if free and is_dynamo
            else None,
        )
