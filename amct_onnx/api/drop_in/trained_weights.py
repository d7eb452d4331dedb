"""Weights from a file in place of a model's own."""

from __future__ import annotations

import math
import zipfile
from collections.abc import Mapping
from dataclasses import replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import numpy as np

from amct_onnx.analyse.fitting.biases import set_bias, takes_bias
from amct_onnx.api.thin_out import masked_by_record
from amct_onnx.errors import DataError, ModelError
from amct_onnx.graph import BuiltModel, build, import_model, read_model
from amct_onnx.graph.op_table import spec_of
from amct_onnx.graph.parts import Constant
from amct_onnx.graph.weights import StoredValues, Values, load_values
from amct_onnx.record import LoadedRecord


def with_trained(built: BuiltModel, path: Path, loaded: LoadedRecord) -> BuiltModel:
    """The model with the weights that a file holds by name, and zeros where the masks of a record want them.

    Args:
        built: the model, without the channels that the record takes out.
        path: an .npz file, or an .onnx file.
        loaded: the record.

    Raises:
        DataError: the file cannot be read or holds nothing, or a weight of it is not the model's, in name, shape or
            type, or holds NaN or infinite values where the model's own has none.
    """
    trained = _with_weights(built, path)
    if not any(entry.selective_prune for entry in loaded.record.prune):
        return trained
    # Training elsewhere knows no masks.
    return masked_by_record(*trained.to_source(), loaded.record, loaded.source)[0].built.stored_like(built)


def _with_weights(built: BuiltModel, path: Path) -> BuiltModel:
    weights = _read(path)
    if not weights:
        raise DataError(f"{path}: it holds no weights; save those of the trained model there, by their names")
    built = _with_biases(built, weights)
    for name, values in weights.items():
        if name not in built.values:
            near = get_close_matches(name, built.values, n=1)
            remedy = f"did you mean '{near[0]}'?" if near else "give the weights of the modified model, by their names"
            raise DataError(f"{path}: it holds '{name}', which is no weight of the model; {remedy}")
        own = built.values[name]
        wanted, found = (tuple(own.shape), own.dtype), (tuple(values.shape), values.dtype)
        if wanted != found:
            raise DataError(
                f"{path}: '{name}' is {_words(*found)}, but the model has {_words(*wanted)}; give the weights of "
                "the model that was made by this record"
            )
        _check_finite(path, name, values, own._values)
    replaced = {name: Constant(name, values) for name, values in weights.items()}
    return replace(built, values={**built.values, **replaced})


def _check_finite(path: Path, name: str, values: Values, own: Values) -> None:
    """Training that diverged leaves such values; a mask of the model's own may hold them."""
    found = load_values(values)
    if found.dtype.kind != "f" or np.isfinite(found).all() or not np.isfinite(load_values(own)).all():
        return
    bad = int(np.count_nonzero(~np.isfinite(found)))
    raise DataError(
        f"{path}: {bad} of the {found.size} values of '{name}' are NaN or infinite, as training that diverged leaves "
        "them; give the weights of an earlier step"
    )


def _with_biases(built: BuiltModel, weights: Mapping[str, Values]) -> BuiltModel:
    """The model with the biases that fitting gave to layers without one, where the weights hold them."""
    wanted = {name: values for name, values in weights.items() if name not in built.values and name.endswith(".bias")}
    if not wanted:
        return built
    model = import_model(*built.to_source())
    for node in model.nodes():
        values = wanted.get(f"{node.name}.bias")
        if values is not None and spec_of(node).has_record and takes_bias(node, math.prod(values.shape)):
            set_bias(model, node, np.zeros(values.shape))
    return build(model).stored_like(built)


def _read(path: Path) -> dict[str, Values]:
    if path.suffix == ".onnx":
        try:
            proto, base_dir = read_model(path)
        except ModelError as fault:
            raise DataError(str(fault)) from fault
        return {tensor.name: StoredValues(tensor, base_dir) for tensor in proto.graph.initializer}
    try:
        with zipfile.ZipFile(path), np.load(path, allow_pickle=False) as arrays:
            return {name: arrays[name] for name in arrays.files}
    except OSError as fault:
        raise DataError(f"{path} cannot be read: {fault.strerror or fault}; give an .npz or .onnx file") from fault
    except (ValueError, EOFError, zipfile.BadZipFile) as fault:
        raise DataError(f"{path} is no file of arrays by name ({fault}); give an .npz or .onnx file") from fault


def _words(shape: tuple[int, ...], dtype: np.dtype[Any]) -> str:
    return f"{'x'.join(map(str, shape)) or 'a scalar'} {dtype}"
