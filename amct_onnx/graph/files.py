"""Model files: read with weights left where they are, digest, write atomically, stream weights of any size."""

from __future__ import annotations

import enum
import hashlib
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import onnx
from google.protobuf.message import DecodeError
from onnx import ModelProto, TensorProto

from amct_onnx.errors import ModelError, UsageError
from amct_onnx.graph.build import PROTOBUF_LIMIT, BuiltModel
from amct_onnx.graph.weights import StoredValues


class ExternalNaming(enum.Enum):
    """How external weight files are named beside a model too large for one file."""

    ONE_FILE = "one_file"
    DEPLOY = "deploy"
    FAKE_QUANT = "fakequant"


def read_model(source: str | os.PathLike[str] | ModelProto) -> tuple[ModelProto, Path | None]:
    """Read a model without loading external weights.

    Args:
        source: path of an ``.onnx`` file, or a ModelProto, which is used as it is and never changed.

    Returns:
        The model and the folder its external weights are relative to (None for a ModelProto).

    Raises:
        ModelError: the file is missing, unreadable or not an ONNX model.
    """
    if isinstance(source, ModelProto):
        return source, None
    path = Path(source)
    try:
        proto = onnx.load_model(str(path), load_external_data=False)
    except OSError as error:
        raise ModelError(f"{path}: cannot read the model: {error.strerror or error}; check the path") from error
    except (DecodeError, ValueError) as error:
        raise ModelError(f"{path}: this is not an ONNX model (binary protobuf expected); export it again") from error
    if not proto.graph.node:
        raise ModelError(f"{path}: the file holds no ONNX graph with nodes; export it again")
    return proto, path.resolve().parent


def digest(proto: ModelProto, base_dir: Path | None) -> str:
    """SHA-256 (hex) of a model: its structure without weight bytes, then each weight's values.

    How and where weights are stored does not matter, so a file, its copy with external weights and the ModelProto
    agree.
    """
    skeleton = ModelProto()
    skeleton.CopyFrom(proto) if _small(proto) else _copy_structure(proto, skeleton)
    for initializer in skeleton.graph.initializer:
        name, data_type, dims = initializer.name, initializer.data_type, list(initializer.dims)
        initializer.Clear()
        initializer.name, initializer.data_type = name, data_type
        initializer.dims.extend(dims)
    sha = hashlib.sha256(skeleton.SerializeToString(deterministic=True))
    for initializer in proto.graph.initializer:
        values = StoredValues(initializer, base_dir).load()
        sha.update(np.ascontiguousarray(values).reshape(-1).view(np.uint8).tobytes() if values.size else b"")
    return sha.hexdigest()


def write_model(built: BuiltModel, path: Path, naming: ExternalNaming = ExternalNaming.ONE_FILE) -> list[Path]:
    """Write a model; weights beside it when the source had them so or when it is too large for one file.

    Returns:
        Every file written, the model first.
    """
    if not built.has_external_source and built.nbytes <= PROTOBUF_LIMIT:
        with replacing(path) as temporary:
            temporary.write_bytes(built.to_proto().SerializeToString(deterministic=True))
        return [path]
    proto = ModelProto()
    proto.CopyFrom(built.skeleton)
    if naming is ExternalNaming.ONE_FILE:
        files = [_write_one_file(built, proto, path.with_name(path.name + ".data"))]
    else:
        files = _write_file_per_tensor(built, proto, path.parent, naming)
    with replacing(path) as temporary:
        temporary.write_bytes(proto.SerializeToString(deterministic=True))
    return [path, *files]


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Give a temporary path beside `path` to write to; it takes the place of `path` only when all went well.

    Raises:
        UsageError: the folder cannot be written to.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    except OSError as error:
        raise UsageError(f"{path}: cannot write here: {error.strerror or error}; choose another output path") from error
    os.close(handle)
    temporary = Path(name)
    try:
        yield temporary
        umask = os.umask(0)
        os.umask(umask)
        temporary.chmod(0o666 & ~umask)
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def _write_one_file(built: BuiltModel, proto: ModelProto, data_path: Path) -> Path:
    alignment = 4096
    with replacing(data_path) as temporary, temporary.open("wb") as stream:
        for initializer in proto.graph.initializer:
            stream.seek(-(-stream.tell() // alignment) * alignment)
            offset = stream.tell()
            stream.write(_bytes_of(built, initializer.name))
            _refer(initializer, data_path.name, offset, stream.tell() - offset)
    return data_path


def _write_file_per_tensor(built: BuiltModel, proto: ModelProto, folder: Path, naming: ExternalNaming) -> list[Path]:
    files = []
    for initializer in proto.graph.initializer:
        safe = initializer.name.replace("/", "_").replace(os.sep, "_")
        path = folder / f"{safe}_{naming.value}.external"
        with replacing(path) as temporary:
            temporary.write_bytes(_bytes_of(built, initializer.name))
        _refer(initializer, path.name, 0, path.stat().st_size)
        files.append(path)
    return files


def _bytes_of(built: BuiltModel, name: str) -> memoryview:
    values = built.values[name]._values
    array = values.load() if hasattr(values, "load") else values
    return memoryview(array.reshape(-1).view("u1")) if array.size else memoryview(b"")


def _refer(initializer: TensorProto, location: str, offset: int, length: int) -> None:
    initializer.data_location = TensorProto.EXTERNAL
    for key, value in (("location", location), ("offset", str(offset)), ("length", str(length))):
        entry = initializer.external_data.add()
        entry.key, entry.value = key, value


def _small(proto: ModelProto) -> bool:
    return bool(proto.ByteSize() < 64_000_000)


def _copy_structure(proto: ModelProto, skeleton: ModelProto) -> None:
    """Copy everything but weight bytes, which would double the memory of a large model."""
    for descriptor, value in proto.ListFields():
        if descriptor.name != "graph":
            _assign(skeleton, descriptor.name, value)
    for descriptor, value in proto.graph.ListFields():
        if descriptor.name != "initializer":
            _assign(skeleton.graph, descriptor.name, value)
    for initializer in proto.graph.initializer:
        skeleton.graph.initializer.add(name=initializer.name, data_type=initializer.data_type, dims=initializer.dims)


def _assign(message: object, name: str, value: object) -> None:
    field = getattr(message, name)
    if hasattr(field, "MergeFrom"):
        field.MergeFrom(value)
    else:
        setattr(message, name, value)
