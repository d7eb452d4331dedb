"""Sessions from models in memory, whatever the size of their weights."""

from __future__ import annotations

import contextlib
import ctypes
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import onnxruntime as ort
from numpy.typing import NDArray
from onnx import ModelProto

from amct_onnx.errors import AmctError, DataError, ModelError
from amct_onnx.graph.build import BuiltModel
from amct_onnx.runtime.lending import Loan, Part, lend_built, lend_proto
from amct_onnx.runtime.memory import SHARED_ARENA, make_shared_arena, release_freed

InferenceSession: TypeAlias = ort.InferenceSession

_NUMPY_TYPES = {
    "tensor(float)": np.float32,
    "tensor(double)": np.float64,
    "tensor(float16)": np.float16,
    "tensor(int8)": np.int8,
    "tensor(int16)": np.int16,
    "tensor(int32)": np.int32,
    "tensor(int64)": np.int64,
    "tensor(uint8)": np.uint8,
    "tensor(uint16)": np.uint16,
    "tensor(uint32)": np.uint32,
    "tensor(uint64)": np.uint64,
    "tensor(bool)": np.bool_,
    "tensor(string)": np.object_,
}


# Where in its own source an onnxruntime message was raised, with the signature of the function.
_SOURCE_PLACE = re.compile(r"/\S*onnxruntime\S*\.(?:cc|h):\d+ .*?\)(?:::<lambda.*?>)? (?=\S)")
_UNKNOWN_OPERATOR = re.compile(r"is not a registered function/op|No Op registered for|NOT_IMPLEMENTED")


@dataclass(frozen=True)
class InputSpec:
    """An input that a caller has to feed.

    Attributes:
        name: its name.
        dtype: numpy type, None for element types numpy does not have.
        shape: fixed sizes as int, free ones as str or None; () also when the rank is not known.
        kind: onnxruntime's name of its type, ``tensor(float)`` or ``seq(tensor(float))``.
    """

    name: str
    dtype: np.dtype[Any] | None
    shape: tuple[int | str | None, ...]
    kind: str = "tensor(float)"


_BLIND_TO_OUTPUTS = ["GemmTransposeFusion", "MatMul_BatchNormalization_Fusion"]
"""Optimizations that lose a tensor between two nodes although it is fetched (onnxruntime 1.32)."""


def open_session(
    model: ModelProto | BuiltModel | Path,
    *,
    base_dir: Path | None = None,
    threads: int = 0,
    optimized_path: Path | None = None,
    optimize: bool = True,
    lean: bool = False,
    part: Part | None = None,
    share_arena: bool = False,
    options: ort.SessionOptions | None = None,
) -> ort.InferenceSession:
    """Open a CPU session.

    Args:
        model: a ModelProto (external weights allowed, relative to `base_dir`), a finished model whose weights are still
            references, or the path of a file.
        base_dir: folder of external weights of a ModelProto; the working folder when None.
        threads: threads within an operator; 0 lets the runtime choose.
        optimized_path: where to write the graph as the runtime has optimized it.
        lean: for callers that compute between runs and fetch much: idle threads do not wait busily, and memory is not
            laid out ahead of a run.
        part: what of a model to run, which is no file; None for all.
        share_arena: take the memory of tensors from the arena that all such sessions share.
        optimize: let the runtime rewrite the graph; without, every node runs as it stands.
        options: what to start from, where the model has operators of its own.

    Raises:
        ModelError: onnxruntime refuses the model; its own words are in the message.
    """
    options = options or ort.SessionOptions()
    # What goes wrong comes back as an exception; the runtime need not print it as well.
    options.log_severity_level = 4
    options.intra_op_num_threads = threads
    if lean:
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        options.enable_mem_pattern = False
    if share_arena:
        make_shared_arena()
        options.add_session_config_entry(SHARED_ARENA, "1")
        # Weights stay as long as the session, so they would split up the arena.
        options.add_session_config_entry("session.use_device_allocator_for_initializers", "1")
    if not optimize:
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    if optimized_path is not None:
        options.optimized_model_filepath = str(optimized_path)
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
    if not isinstance(model, Path):
        folder = str(Path.cwd() if base_dir is None else base_dir)
        # onnxruntime takes no path that is not Unicode; models without external weights do not need it.
        with contextlib.suppress(UnicodeEncodeError):
            folder.encode()
            options.add_session_config_entry("session.model_external_initializers_file_folder_path", folder)
    lent: dict[str, ort.OrtValue] = {}
    nbytes = 0
    try:
        source, loan = _source(model, part)
        nbytes = sum(array.nbytes for array in loan.values())
        lent = {name: ort.OrtValue.ortvalue_from_numpy(array) for name, array in loan.items()}
        if lent:
            options.add_external_initializers(list(lent), list(lent.values()))
            for name, value in lent.items():
                # Without this the graph reads them in place, but its kernels get copies.
                options.add_initializer(name, value)
        session = ort.InferenceSession(
            source,
            options,
            providers=["CPUExecutionProvider"],
            disabled_optimizers=[] if part is None else _BLIND_TO_OUTPUTS,
        )
    except AmctError:
        raise
    except Exception as error:
        # onnxruntime's exceptions share no base class of their own.
        raise ModelError(f"onnxruntime cannot load the model: {_explained(error)}") from error
    finally:
        release_freed(nbytes)
    # The runtime reads them in place and owns none.
    session.lent = lent
    return session


def _source(model: ModelProto | BuiltModel | Path, part: Part | None) -> tuple[str | bytes, Loan]:
    """What a session is made from, and the large weights that are handed over beside it."""
    if isinstance(model, Path):
        return str(model), {}
    light, loan = lend_built(model, part) if isinstance(model, BuiltModel) else lend_proto(model, part)
    _make_names_distinct(light)
    return light.SerializeToString(), loan


def _make_names_distinct(model: ModelProto) -> None:
    """Take doubled node names away: onnxruntime refuses them, names are optional."""
    seen: set[str] = set()
    for node in model.graph.node:
        if node.name in seen:
            node.name = ""
        seen.add(node.name)


def input_specs(session: ort.InferenceSession) -> tuple[InputSpec, ...]:
    """What the model wants to be fed, in order."""
    return tuple(
        InputSpec(
            node.name,
            np.dtype(_NUMPY_TYPES[node.type]) if node.type in _NUMPY_TYPES else None,
            tuple(node.shape or ()),
            node.type,
        )
        for node in session.get_inputs()
    )


def tensor_outputs(session: ort.InferenceSession) -> list[str]:
    """Names of the model's outputs that are tensors, not sequences, maps or optionals."""
    return [node.name for node in session.get_outputs() if node.type.startswith("tensor(")]


def array_outputs(session: ort.InferenceSession) -> list[str]:
    """Names of those of them that hold numbers of a type that numpy has."""
    return [node.name for node in session.get_outputs() if _NUMPY_TYPES.get(node.type, np.object_) is not np.object_]


def fetch(session: ort.InferenceSession, names: Sequence[str], feed: Mapping[str, NDArray[Any]]) -> list[NDArray[Any]]:
    """Run once and return the named outputs as views of the runtime's own memory, without a copy.

    Raises:
        DataError: the run fails; onnxruntime's own words are in the message.
    """
    if not names:
        # To onnxruntime an empty list means all outputs.
        return []
    try:
        if any(array.dtype == np.object_ for array in feed.values()):
            # An OrtValue cannot be made from strings.
            return [np.asarray(value) for value in session.run(list(names), dict(feed))]
        values = {name: ort.OrtValue.ortvalue_from_numpy(array) for name, array in feed.items()}
        return [_view(value) for value in session.run_with_ort_values(list(names), values)]
    except Exception as error:
        raise DataError(f"the model fails on this feed: {_first_line(error)}") from error


class _Owner:
    """Keeps an OrtValue alive as long as the array over its memory."""

    def __init__(self, value: ort.OrtValue, shape: list[int], dtype: np.dtype[Any]) -> None:
        self.value = value
        self.__array_interface__ = {
            "shape": tuple(shape),
            "typestr": dtype.str,
            "data": (value.data_ptr(), True),
            "version": 3,
        }


def _view(value: ort.OrtValue) -> NDArray[Any]:
    dtype = _NUMPY_TYPES.get(value.data_type())
    shape = list(value.shape())
    if dtype is None or dtype is np.object_ or 0 in shape or not ctypes.c_void_p(value.data_ptr()).value:
        return np.asarray(value.numpy())
    return np.asarray(_Owner(value, shape, np.dtype(dtype)))


def _first_line(error: Exception) -> str:
    lines = _SOURCE_PLACE.sub("", str(error)).strip().splitlines()
    return lines[0] if lines else type(error).__name__


def _explained(error: Exception) -> str:
    text = _first_line(error)
    remedy = "calibration runs the model, so it may use only operators that onnxruntime has"
    return f"{text}; {remedy}" if _UNKNOWN_OPERATOR.search(text) else text
