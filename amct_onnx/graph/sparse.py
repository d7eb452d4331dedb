"""Values of sparse tensors."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
from onnx import SparseTensorProto

from amct_onnx.errors import ModelError
from amct_onnx.graph.weights import Array, DerivedValues, StoredValues


def dense_values(sparse: SparseTensorProto, base_dir: Path | None) -> DerivedValues:
    """All values of a sparse tensor, zeros included, made when they are needed.

    Args:
        sparse: values [count], and their places: linear [count], or one row of coordinates each [count, rank].
        base_dir: folder of external weights.
    """
    shape = [int(size) for size in sparse.dims]
    values, indices = StoredValues(sparse.values, base_dir), StoredValues(sparse.indices, base_dir)

    def dense() -> Array:
        places = np.asarray(indices.load(), np.int64)
        result = np.zeros(math.prod(shape), values.dtype)
        try:
            linear = places if places.ndim == 1 else np.ravel_multi_index(tuple(places.T), tuple(shape))
            if linear.size and linear.min() < 0:
                raise IndexError(int(linear.min()))
            result[linear] = values.load()
        except (IndexError, ValueError) as error:
            raise ModelError(
                f"sparse tensor '{sparse.values.name}' has indices that do not fit its values or its shape {shape}; "
                "export the model again"
            ) from error
        return result.reshape(shape)

    return DerivedValues(shape, values.dtype, dense)
