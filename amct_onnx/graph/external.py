"""Weights in files of their own beside a model: which ones go there, and what the files are called."""

from __future__ import annotations

import enum
import hashlib
import re
from collections.abc import Callable, Iterable, Iterator
from itertools import count
from pathlib import Path
from typing import TypeAlias

from onnx import ModelProto, TensorProto

from amct_onnx.errors import ModelError
from amct_onnx.graph.build import BuiltModel, make_inline
from amct_onnx.graph.protos import nested_tensors
from amct_onnx.graph.weights import StoredValues, Values, stored_bytes

_ALIGNMENT = 4096
_SMALL = 1024
_LONGEST_STEM = 150

Stage: TypeAlias = Callable[[Path], Path]
Weight: TypeAlias = "tuple[TensorProto, Values]"


class ExternalNaming(enum.Enum):
    """How external weight files are named beside a model too large for one file."""

    ONE_FILE = "one_file"
    DEPLOY = "deploy"
    FAKE_QUANT = "fakequant"


def move_weights(built: BuiltModel, proto: ModelProto, path: Path, naming: ExternalNaming, stage: Stage) -> list[Path]:
    """Write the larger weights of `built` to files beside `path` and let `proto` refer to them.

    Args:
        built: the model.
        proto: a copy of its skeleton.
        path: where the model itself will be.
        naming: how the files are called.
        stage: gives a temporary path to write to, which takes the place of its argument later on.

    Returns:
        The files, as they will be called.
    """
    weights = list(_large_weights(built, proto))
    names = _FreeNames(path, built)
    if naming is ExternalNaming.ONE_FILE:
        return [_write_one(weights, names.choose(path.name, ".data"), stage)] if weights else []
    return [
        _write_one([weight], names.choose(_safe_stem(weight[0].name), f"_{naming.value}.external"), stage)
        for weight in weights
    ]


def _large_weights(built: BuiltModel, proto: ModelProto) -> Iterator[Weight]:
    """What is worth a place in a file; small nested tensors of external files are taken in at once."""
    for header in proto.graph.initializer:
        values = built.values[header.name]._values
        if header.data_type != TensorProto.STRING and values.nbytes >= _SMALL:
            yield header, values
    for tensor, stored in built.external_nested(proto):
        if stored.nbytes >= _SMALL:
            yield tensor, stored
        else:
            make_inline(tensor, stored)


def _write_one(weights: Iterable[Weight], path: Path, stage: Stage) -> Path:
    with stage(path).open("wb") as stream:
        for tensor, values in weights:
            data = stored_bytes(values)
            offset = -(-stream.tell() // _ALIGNMENT) * _ALIGNMENT
            stream.seek(offset)
            stream.write(data.data)
            _refer(tensor, path.name, offset, data.size)
    return path


def _refer(tensor: TensorProto, location: str, offset: int, length: int) -> None:
    tensor.ClearField("external_data")
    tensor.data_location = TensorProto.EXTERNAL
    for key, value in (("location", location), ("offset", str(offset)), ("length", str(length))):
        tensor.external_data.add(key=key, value=value)


def _safe_stem(name: str) -> str:
    """`name` as a file name any system takes; long ones are cut and told apart by a hash."""
    safe = re.sub(r'[/\\:*?"<>|\x00-\x1f]', "_", name) or "constant"
    if len(safe.encode()) <= _LONGEST_STEM:
        return safe
    shortened = safe.encode()[:_LONGEST_STEM].decode(errors="ignore")
    return f"{shortened}_{hashlib.sha256(name.encode()).hexdigest()[:8]}"


class _FreeNames:
    """File names beside a model that overwrite nothing but the weights of the model it replaces."""

    def __init__(self, path: Path, built: BuiltModel) -> None:
        self._path = path
        self._built = built
        self._taken: set[str] = set()
        self._own: set[Path] | None = None

    def choose(self, stem: str, ending: str) -> Path:
        for number in count():
            name = f"{stem}_{number}{ending}" if number else f"{stem}{ending}"
            # Two names that differ in case alone are one file on some systems.
            if name.casefold() not in self._taken and self._may_write(self._path.with_name(name)):
                break
        self._taken.add(name.casefold())
        return self._path.with_name(name)

    def _may_write(self, path: Path) -> bool:
        if not path.exists():
            return True
        if self._own is None:
            self._own = self._replaced_files() - _external_files(self._built.source, self._built.base_dir)
        return path.resolve() in self._own

    def _replaced_files(self) -> set[Path]:
        try:
            replaced = ModelProto.FromString(self._path.read_bytes()) if self._path.exists() else ModelProto()
        except Exception:
            # Whatever lies there is no model of ours, so it owns no weight file; protobuf's errors share no base.
            replaced = ModelProto()
        return _external_files(replaced, self._path.parent)


def _external_files(proto: ModelProto, base_dir: Path | None) -> set[Path]:
    files: set[Path] = set()
    if base_dir is None:
        return files
    for tensor in (*proto.graph.initializer, *nested_tensors(proto)):
        if tensor.data_location == TensorProto.EXTERNAL:
            files.update(_location(StoredValues(tensor, base_dir)))
    return files


def _location(stored: StoredValues) -> Iterator[Path]:
    try:
        yield stored.location()[0].resolve()
    except ModelError:
        # A place that may not be read is not written to either.
        return
