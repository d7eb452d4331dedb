"""A model without its large weights, for tools that only need the structure."""

from __future__ import annotations

import math
from pathlib import Path

from onnx import ModelProto, TensorProto

from amct_onnx.graph.protos import copy_header, copy_structure, nested_tensors
from amct_onnx.graph.weights import StoredValues

_SMALL = 1024
_TAG = b"amct_onnx_weight_"


def lighten(proto: ModelProto, base_dir: Path | None) -> tuple[ModelProto, list[TensorProto]]:
    """A copy whose large tensors hold a number in place of their bytes, and the originals by number.

    Small tensors stay, since they may hold shapes and axes; those in external files are read in. The number stands as
    raw data, which every tool copies, where older ones lose a reference to an external file.
    """
    weights: list[TensorProto] = []

    def copy_tensor(source: TensorProto, target: TensorProto) -> None:
        is_external = source.data_location == TensorProto.EXTERNAL
        is_large = math.prod(source.dims) > _SMALL and source.data_type != TensorProto.STRING
        if is_large or (is_external and base_dir is None):
            copy_header(source, target)
            target.raw_data = _TAG + str(len(weights)).encode()
            weights.append(source)
        elif is_external:
            copy_header(source, target)
            target.raw_data = StoredValues(source, base_dir).stored_bytes().tobytes()
        else:
            target.CopyFrom(source)

    return copy_structure(proto, copy_tensor), weights


def restore(light: ModelProto, weights: list[TensorProto]) -> None:
    """Put the originals back wherever `light`, or what became of it, holds their number."""
    for tensor in (*light.graph.initializer, *nested_tensors(light)):
        if tensor.raw_data.startswith(_TAG):
            name = tensor.name
            tensor.CopyFrom(weights[int(tensor.raw_data.removeprefix(_TAG))])
            tensor.name = name
