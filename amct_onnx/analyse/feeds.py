"""Calibration feeds: whatever a caller has becomes one dict of arrays per run of the model."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from amct_onnx.analyse.feed_source import FeedSource
from amct_onnx.errors import DataError
from amct_onnx.runtime import InputSpec

Feed = dict[str, NDArray[Any]]


def walks_once(data: Any) -> bool:
    """Whether the feeds can be walked a single time: a generator, or onnxruntime's CalibrationDataReader."""
    return isinstance(data, Iterator) or hasattr(data, "get_next")


def iterate_feeds(data: Any, inputs: Sequence[InputSpec]) -> Iterator[Feed]:
    """Feeds in the order of `data`, checked against the model.

    Args:
        data: an iterable of feeds, or an object with ``get_next()`` (onnxruntime's CalibrationDataReader). A feed is
            a dict by input name, an array for a model of one input, or a tuple or list in input order, of which what
            comes after the last input (labels) is ignored. Arrays may be torch tensors.
        inputs: what the model wants.

    Raises:
        DataError: a feed does not fit; the message names its number, the input, and what was expected.
    """
    _refuse_unfeedable(inputs)
    for number, item in enumerate(_items(data)):
        yield _feed(item, inputs, feed_label(data, number))


def feed_label(data: Any, number: int) -> str:
    """How messages name one feed: its number, and its files where it has any."""
    return f"feed {number} ({data.label(number)})" if isinstance(data, FeedSource) else f"feed {number}"


def _refuse_unfeedable(inputs: Sequence[InputSpec]) -> None:
    for spec in inputs:
        if not spec.kind.startswith(("tensor(", "optional(tensor(")):
            raise DataError(
                f"input '{spec.name}' is a {spec.kind}; only tensors can be fed: export the model with tensor inputs"
            )


def _items(data: Any) -> Iterable[Any]:
    if hasattr(data, "get_next"):
        return iter(data.get_next, None)
    if isinstance(data, np.ndarray | Mapping | str | bytes) or not isinstance(data, Iterable):
        raise DataError(
            f"calibration data must be an iterable of feeds, not {type(data).__name__}; put a single feed into a list"
        )
    return data


def _feed(item: Any, inputs: Sequence[InputSpec], where: str) -> Feed:
    if isinstance(item, Mapping):
        named = {str(name): value for name, value in item.items()}
    elif isinstance(item, tuple | list):
        named = {spec.name: value for spec, value in zip(inputs, item, strict=False)}
    else:
        if len(inputs) != 1:
            raise DataError(
                f"{where}: one array, but the model has {len(inputs)} inputs "
                f"({', '.join(spec.name for spec in inputs)}); give a dict by input name"
            )
        named = {inputs[0].name: item}
    expected = {spec.name for spec in inputs}
    unknown = sorted(set(named) - expected)
    missing = [spec.name for spec in inputs if spec.name not in named]
    if unknown or missing:
        found = f"holds '{unknown[0]}', which is no input" if unknown else ""
        lacks = f"has no array for input '{missing[0]}'" if missing else ""
        inputs_are = f"the model's inputs are {', '.join(spec.name for spec in inputs)}"
        remedy = "rename it" if unknown and missing else "drop it" if unknown else "add it"
        raise DataError(f"{where}: {', and '.join(filter(None, (found, lacks)))}; {inputs_are}: {remedy}")
    return {spec.name: _array(named[spec.name], spec, where) for spec in inputs}


def _array(value: Any, spec: InputSpec, where: str) -> NDArray[Any]:
    if hasattr(value, "detach"):
        value = value.detach().cpu().numpy()
    try:
        array = np.asarray(value)
    except ValueError as error:
        raise DataError(f"{where}, input '{spec.name}': cannot be made an array: {error}; give equal rows") from error
    where = f"{where}, input '{spec.name}'"
    if array.dtype == np.object_ and spec.dtype != np.object_:
        raise DataError(f"{where}: {type(value).__name__} of Python objects, not numbers; convert the data")
    # An empty shape is that of a scalar or an unknown one; the runtime tells them apart.
    is_misfit = len(array.shape) != len(spec.shape) or any(
        isinstance(want, int) and want != have for want, have in zip(spec.shape, array.shape, strict=True)
    )
    if spec.shape and is_misfit:
        shown = ", ".join("?" if size is None else str(size) for size in spec.shape)
        raise DataError(f"{where}: shape {list(array.shape)} does not fit the model's [{shown}]; reshape the data")
    return np.ascontiguousarray(_cast(array, spec, where))


def _cast(array: NDArray[Any], spec: InputSpec, where: str) -> NDArray[Any]:
    """Cast within one kind of number when no value changes its meaning."""
    want = spec.dtype
    if want is None or array.dtype == want:
        return array
    if array.dtype.kind in "US" and want.kind == "O":
        return array.astype(object)
    if array.dtype.kind == "f" and want.kind == "f":
        with np.errstate(over="ignore"):
            narrowed = array.astype(want)
        if np.any(np.isinf(narrowed) & np.isfinite(array)):
            raise DataError(f"{where}: holds values beyond the range of the model's {want}; scale the data")
        return narrowed
    if array.dtype.kind in "iu" and want.kind in "iu":
        limits = np.iinfo(want)
        if array.size == 0 or (array.min() >= limits.min and array.max() <= limits.max):
            return array.astype(want)
    raise DataError(f"{where}: element type {array.dtype} does not fit the model's {want}; convert the data")
