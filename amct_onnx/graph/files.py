"""Model files: read with weights left where they are, write atomically and one weight at a time."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import onnx
from google.protobuf import json_format, text_format
from google.protobuf.message import DecodeError
from onnx import ModelProto, TensorProto

from amct_onnx.errors import ModelError, UsageError
from amct_onnx.graph.build import PROTOBUF_LIMIT, BuiltModel
from amct_onnx.graph.external import ExternalNaming, move_weights
from amct_onnx.graph.protos import nested_tensors
from amct_onnx.graph.stream import Initializer, write_stream
from amct_onnx.graph.weights import is_below

_UNREADABLE = (DecodeError, ValueError, onnx.parser.ParseError, text_format.ParseError, json_format.ParseError)


def read_model(source: str | os.PathLike[str] | ModelProto) -> tuple[ModelProto, Path | None]:
    """Read a model without loading external weights.

    Args:
        source: path of an ``.onnx`` file, or a ModelProto, which is used as it is and never changed.

    Returns:
        The model and the folder its external weights are relative to (None for a ModelProto).

    Raises:
        ModelError: the file is missing, unreadable or not an ONNX model, or `source` is neither of these.
    """
    if isinstance(source, ModelProto):
        return source, None
    try:
        path = Path(source)
    except TypeError as error:
        kind = type(source).__name__
        remedy = "give a path or a ModelProto (of a result of ours: .to_proto())"
        raise ModelError(f"the model is a {kind}; {remedy}") from error
    try:
        proto = onnx.load_model(str(path), load_external_data=False)
    except OSError as error:
        raise ModelError(f"{path}: cannot read the model: {error.strerror or error}; check the path") from error
    except _UNREADABLE as error:
        remedy = "it is text; give the .onnx file" if _is_text(path) else "export it again"
        raise ModelError(f"{path}: this is not an ONNX model (binary protobuf expected); {remedy}") from error
    if not proto.graph.node:
        raise ModelError(f"{path}: the file holds no ONNX graph with nodes; export it again")
    if path.is_symlink():
        _follow_links(proto, path)
    return proto, path.resolve().parent


def _is_text(path: Path) -> bool:
    """Whether a file looks like a record or a config, given where a model is wanted."""
    try:
        return "\0" not in path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        return False


def _follow_links(proto: ModelProto, path: Path) -> None:
    """Name external files as they are called beside the real model.

    Caches keep a model and its data under other names in one folder, and links of the right names in another.
    """
    folder = path.resolve().parent
    for tensor in (*proto.graph.initializer, *nested_tensors(proto)):
        for entry in tensor.external_data:
            if entry.key == "location" and is_below(entry.value) and not (folder / entry.value).exists():
                target = (path.parent / entry.value).resolve()
                if target.is_relative_to(folder) and target.exists():
                    entry.value = target.relative_to(folder).as_posix()


def write_model(
    built: BuiltModel,
    path: Path,
    naming: ExternalNaming = ExternalNaming.ONE_FILE,
    *,
    staged: ExitStack | None = None,
) -> list[Path]:
    """Write a model; weights beside it when the source had them so or when it is too large for one file.

    Nothing is visible under its final name before everything has been written, and no file is overwritten but the
    model at `path` and the weight files that belong to it.

    Args:
        built: the model.
        path: where it goes.
        naming: how weight files are named.
        staged: a stack that holds back the files of several writes, which all take their places when it closes.

    Returns:
        Every file written, the model first.

    Raises:
        UsageError: the folder cannot be written to.
        ModelError: a weight cannot be read.
    """
    proto = ModelProto()
    proto.CopyFrom(built.skeleton)
    files: list[Path] = []
    with ExitStack() as own:
        stack = staged or own
        # The stack unwinds backwards: weight files take their places first, the model last.
        temporary = stack.enter_context(replacing(path))
        if built.has_external_source or built.nbytes > PROTOBUF_LIMIT:
            files = move_weights(built, proto, path, naming, lambda file: stack.enter_context(replacing(file)))
        with temporary.open("wb") as stream:
            write_stream(stream, proto, [_initializer(built, header) for header in proto.graph.initializer])
    return [path, *files]


def _initializer(built: BuiltModel, header: TensorProto) -> Initializer:
    is_elsewhere = header.data_location == TensorProto.EXTERNAL
    return Initializer(header, None if is_elsewhere else built.values[header.name]._values)


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Give a temporary path beside `path` to write to; it takes the place of `path` only when all went well.

    Raises:
        UsageError: the folder cannot be written to, or the disk is full.
    """
    temporary: Path | None = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(prefix=f".{path.name[:40]}.", dir=path.parent)
        os.close(handle)
        temporary = Path(name)
        yield temporary
        umask = os.umask(0)
        os.umask(umask)
        temporary.chmod(0o666 & ~umask)
        os.replace(temporary, path)
    except OSError as error:
        raise UsageError(
            f"{path}: cannot write here: {error.strerror or error}; nothing was changed: free space or choose another "
            "output path"
        ) from error
    finally:
        if temporary is not None:
            temporary.unlink(missing_ok=True)
