"""Weight tensors that are read on demand, from the model itself or from its external files."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_graphsurgeon as gs
from numpy.typing import NDArray
from onnx import TensorProto, numpy_helper

from amct_onnx.errors import ModelError

Array = NDArray[Any]


class StoredValues(gs.ir.tensor.LazyValues):  # type: ignore[misc]
    """An initializer of the source model; nothing is read before :meth:`load`.

    Args:
        tensor: the initializer as it stands in the model.
        base_dir: folder that external data locations are relative to, or None for a model held in memory.
    """

    def __init__(self, tensor: TensorProto, base_dir: Path | None) -> None:
        self.tensor = tensor
        self.base_dir = base_dir
        self.shape = list(tensor.dims)
        self.dtype = _numpy_dtype(tensor.data_type)
        self.nbytes = int(np.prod(self.shape, dtype=np.int64)) * self.dtype.itemsize

    @property
    def is_external(self) -> bool:
        """Whether the bytes lie in another file than the model."""
        return bool(self.tensor.data_location == TensorProto.EXTERNAL)

    def load(self) -> Array:
        """Read the values; a fresh array each time, so that nothing is kept in memory.

        Raises:
            ModelError: the external file is missing or shorter than the model says.
        """
        if not self.is_external:
            return numpy_helper.to_array(self.tensor)
        path, offset, length = self.location()
        try:
            if length != self.nbytes or path.stat().st_size < offset + length:
                raise ModelError(
                    f"external data of tensor '{self.tensor.name}' does not fit: {path} should hold {self.nbytes} "
                    f"bytes from offset {offset}; copy the complete weight files beside the model"
                )
            mapped = np.memmap(path, dtype=np.uint8, mode="r", offset=offset, shape=(length,)) if length else b""
        except OSError as error:
            raise ModelError(
                f"external data of tensor '{self.tensor.name}' cannot be read: {path}: {error.strerror}; "
                "keep the weight files beside the model"
            ) from error
        return np.frombuffer(mapped, dtype=self.dtype).reshape(self.shape)

    def location(self) -> tuple[Path, int, int]:
        """File, byte offset and byte length of external data."""
        entries = {entry.key: entry.value for entry in self.tensor.external_data}
        relative = entries.get("location", "")
        if not relative or os.path.isabs(relative) or ".." in Path(relative).parts:
            raise ModelError(
                f"external data of tensor '{self.tensor.name}' has location '{relative}'; ONNX allows only a path "
                "below the model's own folder"
            )
        path = (self.base_dir or Path()) / relative
        return path, int(entries.get("offset", 0)), int(entries.get("length", self.nbytes))


class DerivedValues(gs.ir.tensor.LazyValues):  # type: ignore[misc]
    """Values computed from others when they are needed, so that rewritten weights cost no memory until saved.

    Args:
        shape: shape of the result.
        dtype: numpy type of the result.
        compute: returns the array; called once for every :meth:`load`.
    """

    def __init__(self, shape: list[int], dtype: np.dtype[Any], compute: Callable[[], Array]) -> None:
        self.shape = list(shape)
        self.dtype = np.dtype(dtype)
        self.nbytes = int(np.prod(self.shape, dtype=np.int64)) * self.dtype.itemsize
        self._compute = compute

    def load(self) -> Array:
        """Compute the values."""
        values = self._compute()
        if list(values.shape) != self.shape or values.dtype != self.dtype:
            raise TypeError(f"derived values have {values.shape} {values.dtype}, declared {self.shape} {self.dtype}")
        return values


def _numpy_dtype(data_type: int) -> np.dtype[Any]:
    try:
        return np.dtype(onnx.helper.tensor_dtype_to_np_dtype(data_type))
    except KeyError as error:
        raise ModelError(f"tensor element type {data_type} is unknown to the installed onnx; update onnx") from error
