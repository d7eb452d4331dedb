"""Nodes and tensors of onnx-graphsurgeon, made without its costly constructors.

They are graphsurgeon's own types in every other respect. Making one here takes a fifth of the time, which is most of
what importing, copying and rewriting a large graph costs.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeAlias

import numpy as np
import onnx_graphsurgeon as gs
from onnx import NodeProto
from onnx_graphsurgeon.util.misc import SynchronizedList

from amct_onnx.graph.weights import Values

Tensor: TypeAlias = gs.Tensor

_set = object.__setattr__
"""Graphsurgeon's own attribute setting looks for lists to keep in step, on every attribute."""


class Node(gs.Node):  # type: ignore[misc]
    """One operation.

    Attributes:
        origin: the proto it was imported from, None for one that a pass made.
    """

    origin: NodeProto | None

    def __init__(
        self,
        op: str,
        name: str = "",
        attrs: Mapping[str, Any] | None = None,
        inputs: Sequence[Tensor] = (),
        outputs: Sequence[Tensor] = (),
        domain: str | None = None,
        origin: NodeProto | None = None,
    ) -> None:
        _set(self, "op", op)
        _set(self, "name", name)
        _set(self, "attrs", {} if attrs is None else dict(attrs))
        _set(self, "inputs", _links(self, "outputs", inputs))
        _set(self, "outputs", _links(self, "inputs", outputs))
        _set(self, "domain", domain)
        _set(self, "origin", origin)
        for tensor in inputs:
            list.append(tensor.outputs, self)
        for tensor in outputs:
            list.append(tensor.inputs, self)


class Variable(gs.Variable):  # type: ignore[misc]
    """A tensor computed at run time."""

    def __init__(
        self, name: str, dtype: np.dtype[Any] | None = None, shape: Sequence[int | str | None] | None = None
    ) -> None:
        _set(self, "name", name)
        _set(self, "inputs", _links(self, "outputs"))
        _set(self, "outputs", _links(self, "inputs"))
        _set(self, "dtype", dtype)
        _set(self, "shape", shape)
        _set(self, "type", "tensor_type")

    @staticmethod
    def empty() -> Variable:
        """Stands for an optional input or output that is not there."""
        return Variable("")


class Constant(gs.Constant):  # type: ignore[misc]
    """A tensor with known values, which may be lazy."""

    def __init__(self, name: str, values: Values) -> None:
        _set(self, "name", name)
        _set(self, "inputs", _links(self, "outputs"))
        _set(self, "outputs", _links(self, "inputs"))
        _set(self, "_values", values)
        _set(self, "data_location", None)
        _set(self, "_export_dtype", None)


class _Links(SynchronizedList):  # type: ignore[misc]
    """The list of a node's tensors or a tensor's nodes; slots spare each one a dictionary."""

    __slots__ = ("field_name", "parent_obj")


def _links(parent: Node | Tensor, field_name: str, members: Sequence[Tensor] = ()) -> _Links:
    links = _Links.__new__(_Links)
    links.parent_obj, links.field_name = parent, field_name
    if members:
        list.extend(links, members)
    return links


@contextmanager
def collection_paused() -> Iterator[None]:
    """Hold Python's cycle collector back while a large graph is made.

    Nodes and tensors refer to each other, so every collection would walk the whole graph, again and again as it grows,
    and find nothing to free.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
