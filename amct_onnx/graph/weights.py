"""Weight tensors that are read on demand, from the model itself or from its external files."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import onnx
import onnx_graphsurgeon as gs
from numpy.typing import NDArray
from onnx import TensorProto, numpy_helper

from amct_onnx.errors import ModelError

Array: TypeAlias = NDArray[Any]
Bytes: TypeAlias = NDArray[np.uint8]
Values: TypeAlias = "Array | gs.ir.tensor.LazyValues"

_PACKED_BITS = {
    getattr(TensorProto, name): bits
    for bits, names in ((2, ("INT2", "UINT2")), (4, ("INT4", "UINT4", "FLOAT4E2M1")), (6, ("FLOAT6E2M3", "FLOAT6E3M2")))
    for name in names
    if hasattr(TensorProto, name)
}


class StoredValues(gs.ir.tensor.LazyValues):  # type: ignore[misc]
    """A tensor of the source model; nothing is read before :meth:`load`.

    Args:
        tensor: the tensor as it stands in the model.
        base_dir: folder that external data locations are relative to, or None for a model held in memory.
    """

    def __init__(self, tensor: TensorProto, base_dir: Path | None) -> None:
        self.tensor = tensor
        self.base_dir = base_dir
        self.shape = list(tensor.dims)
        self.dtype = _numpy_dtype(tensor)
        self.nbytes = storage_bytes(tensor.data_type, math.prod(self.shape), self.dtype)

    @property
    def is_external(self) -> bool:
        """Whether the bytes lie in another file than the model."""
        return bool(self.tensor.data_location == TensorProto.EXTERNAL)

    def load(self) -> Array:
        """Read the values; a fresh array each time, so that nothing is kept in memory.

        Raises:
            ModelError: the bytes are missing or are not as many as the shape needs.
        """
        if self.is_external and self.tensor.data_type in _PACKED_BITS:
            inline = TensorProto(dims=self.tensor.dims, data_type=self.tensor.data_type)
            inline.raw_data = self.stored_bytes().tobytes()
            return numpy_helper.to_array(inline)
        if self.is_external:
            return self.stored_bytes().view(self.dtype).reshape(self.shape)
        try:
            return numpy_helper.to_array(self.tensor)
        except ValueError as error:
            raise ModelError(
                f"tensor '{self.tensor.name}' does not hold as many values as its shape {self.shape} needs; "
                "export the model again"
            ) from error

    def stored_bytes(self) -> Bytes:
        """The values as ONNX stores raw data: little-endian, small types packed; a view of the file when external.

        Raises:
            ModelError: the bytes are missing or are not as many as the shape needs.
        """
        if self.is_external:
            return self._mapped()
        if self.tensor.HasField("raw_data"):
            return np.frombuffer(self.tensor.raw_data, np.uint8)
        return _as_stored(self.load(), self.tensor.data_type)

    def location(self) -> tuple[Path, int, int]:
        """File, byte offset and byte length of external data.

        Raises:
            ModelError: the model says nothing usable, or names a file outside its own folder.
        """
        name = self.tensor.name
        entries = {entry.key: entry.value for entry in self.tensor.external_data}
        relative = entries.get("location", "")
        if not is_below(relative):
            raise ModelError(
                f"external data of tensor '{name}' has location '{relative}'; ONNX allows only a path below the "
                "model's own folder; save the model again with its data beside it"
            )
        if self.base_dir is None:
            raise ModelError(
                f"tensor '{name}' lies in the external file '{relative}', but the model was given in memory without a "
                "folder; give the path of the model file, or load it together with its external data"
            )
        path = self.base_dir / relative
        if not path.resolve().is_relative_to(self.base_dir.resolve()):
            raise ModelError(
                f"external data of tensor '{name}' in {relative} is a link to {path.resolve()}, outside the model's "
                "own folder; copy the file itself beside the model"
            )
        try:
            offset, length = int(entries.get("offset", 0)), int(entries.get("length", self.nbytes))
        except ValueError:
            offset, length = -1, -1
        if offset < 0 or length != self.nbytes:
            raise ModelError(
                f"external data of tensor '{name}' in {relative} has offset '{entries.get('offset', 0)}' and length "
                f"'{entries.get('length')}', its shape needs {self.nbytes} bytes; save the model again"
            )
        return path, offset, length

    def _mapped(self) -> Bytes:
        path, offset, length = self.location()
        if not length:
            return np.empty(0, np.uint8)
        try:
            size = path.stat().st_size
            if size < offset + length:
                raise ModelError(
                    f"external data of tensor '{self.tensor.name}' is cut off: {path} has {size} bytes, the tensor "
                    f"ends at {offset + length}; copy the complete weight file beside the model"
                )
            return np.asarray(np.memmap(path, dtype=np.uint8, mode="r", offset=offset, shape=(length,)))
        except OSError as error:
            raise ModelError(
                f"external data of tensor '{self.tensor.name}' cannot be read: {path}: {error.strerror or error}; "
                "keep the weight files beside the model"
            ) from error


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
        self.nbytes = math.prod(self.shape) * self.dtype.itemsize
        self._compute = compute

    def load(self) -> Array:
        """Compute the values."""
        values = self._compute()
        if list(values.shape) != self.shape or values.dtype != self.dtype:
            raise TypeError(f"derived values have {values.shape} {values.dtype}, declared {self.shape} {self.dtype}")
        return values


def is_below(location: str) -> bool:
    """Whether the text is a path that leads below the folder it is relative to, links aside."""
    return bool(location) and "\0" not in location and not os.path.isabs(location) and ".." not in Path(location).parts


def load_values(values: Values) -> Array:
    """The array behind `values`, read or computed afresh and not kept."""
    return np.asarray(values.load() if isinstance(values, gs.ir.tensor.LazyValues) else values)


def stored_bytes(values: Values) -> Bytes:
    """The bytes that ONNX's raw data holds for `values`; no copy where the memory is in that form already."""
    if isinstance(values, StoredValues):
        return values.stored_bytes()
    array = load_values(values)
    # Types that onnx packs are none of numpy's own.
    packed = 0 if array.dtype.isbuiltin == 1 else onnx.helper.np_dtype_to_tensor_dtype(array.dtype)
    return _as_stored(array, packed)


def raw_data(values: Values) -> bytes:
    """:func:`stored_bytes` as one string; the short way for the many small arrays of a large graph."""
    if isinstance(values, np.ndarray) and values.dtype.isbuiltin == 1:
        return values.tobytes()
    return stored_bytes(values).tobytes()


def storage_bytes(data_type: int, count: int, dtype: np.dtype[Any]) -> int:
    """Number of bytes that raw data of `count` values takes."""
    return -(-count * _PACKED_BITS.get(data_type, 8 * dtype.itemsize) // 8)


def _as_stored(array: Array, data_type: int) -> Bytes:
    bits = _PACKED_BITS.get(data_type)
    if bits is not None and array.dtype.itemsize > 1:
        # Older versions of onnx unpack into wider numbers.
        array = array.astype(np.int16).astype(np.int8)
    flat = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    if bits is None:
        return flat
    single_bits = np.unpackbits(flat.reshape(-1, 1), axis=1, bitorder="little")[:, :bits]
    return np.packbits(single_bits, bitorder="little")


def _numpy_dtype(tensor: TensorProto) -> np.dtype[Any]:
    try:
        return np.dtype(onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type))
    except KeyError as error:
        raise ModelError(
            f"tensor '{tensor.name}' has element type {tensor.data_type}, which the installed onnx does not know; "
            "update onnx"
        ) from error
