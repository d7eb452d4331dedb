"""Models as callers give them: read, and checked for what every later step takes for granted."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterable, Iterator, Set
from contextlib import contextmanager
from pathlib import Path
from typing import TypeAlias

import onnx
from onnx import AttributeProto, GraphProto, ModelProto, NodeProto, TensorProto, ValueInfoProto

from amct_onnx.errors import AmctError, ModelError
from amct_onnx.graph import read_model
from amct_onnx.graph.weights import StoredValues
from amct_onnx.passes.insert_observers import DOMAIN
from amct_onnx.runtime import open_session

Source: TypeAlias = str | os.PathLike[str] | ModelProto

_DEPLOY_TYPES = {"AscendQuant", "AscendDequant"}
_FAKE_QUANT = re.compile(r"\.(?:quant|dequant)\.fakequant(?:\.|$)")
_PACKED_TYPES = {"UINT4", "INT4", "FLOAT4E2M1", "UINT2", "INT2"}


def load_source(source: Source) -> tuple[ModelProto, Path | None]:
    """Read a model without its external weights.

    Returns:
        The model and the folder its external weights are relative to (None for a ModelProto).

    Raises:
        ModelError: it cannot be read, or a node or weight contradicts itself.
    """
    proto, base_dir = read_model(source)
    if not proto.graph.node:
        raise ModelError("the model has no nodes; export it again")
    opset = next((entry.version for entry in proto.opset_import if entry.domain in ("", "ai.onnx")), 0)
    _check_graph(proto.graph, frozenset(), opset)
    return proto, base_dir


def refuse_compressed(proto: ModelProto) -> None:
    """Raise :class:`ModelError` if a model was made of another to compress it, and cannot be compressed again."""
    for node in proto.graph.node:
        form = _form_shown_by(node)
        if form is not None:
            raise ModelError(
                f"{_called(node)} shows that this is a {form} model already; give the float model that it was made from"
            )


def _form_shown_by(node: NodeProto) -> str | None:
    if node.op_type in _DEPLOY_TYPES:
        return "deploy"
    if node.domain == DOMAIN:
        return "calibration"
    return "fake-quant" if _FAKE_QUANT.search(node.name) else None


@contextmanager
def blaming_illegal_models(proto: ModelProto, base_dir: Path | None) -> Iterator[None]:
    """Let a failure on a model that onnxruntime itself refuses be the model's, in onnxruntime's words.

    What ONNX demands of each operator is not checked twice; where the model is legal, the failure stays what it was.

    Raises:
        ModelError: something failed, and onnxruntime cannot load the model either.
    """
    try:
        yield
    except AmctError:
        raise
    except Exception:
        open_session(proto, base_dir=base_dir)
        raise


def source_files(source: Source, proto: ModelProto, base_dir: Path | None) -> tuple[Path, ...]:
    """The files a model is read from: itself, and those of its external weights."""
    own = [] if isinstance(source, ModelProto) else [Path(source)]
    stored = (StoredValues(tensor, base_dir) for tensor in proto.graph.initializer if _is_external(tensor))
    return tuple(dict.fromkeys([*own, *(values.location()[0] for values in stored)]))


def _check_graph(graph: GraphProto, outer: Set[str], opset: int) -> None:
    _check_text("the graph", (graph.name, graph.doc_string))
    for info in (*graph.input, *graph.output, *graph.value_info):
        _check_type(info)
    known = {*outer, *(info.name for info in graph.input), *(tensor.name for tensor in graph.initializer)}
    known |= {sparse.values.name for sparse in graph.sparse_initializer}
    known |= {name for node in graph.node for name in node.output}
    for tensor in graph.initializer:
        _check_text("a weight", (tensor.name,))
        _check_size(tensor)
    for node in graph.node:
        names = (attribute.name for attribute in node.attribute)
        _check_text("a node", (node.name, node.op_type, node.domain, *node.input, *node.output, *names))
        _check_arity(node, opset)
        for name in node.input:
            if name and name not in known:
                raise ModelError(
                    f"{_called(node)} reads tensor '{name}', which nothing in the model makes; export it again"
                )
        for body in _bodies(node):
            _check_graph(body, known, opset)


def _check_text(owner: str, texts: Iterable[str | bytes]) -> None:
    """protobuf hands out bytes where a text is not UTF-8."""
    for text in texts:
        if isinstance(text, bytes):
            raise ModelError(
                f"{owner} bears the text {text!r}, which is not UTF-8; the file is damaged, export it again"
            )


def _check_type(info: ValueInfoProto) -> None:
    _check_text("a tensor", (info.name,))
    if not info.type.HasField("tensor_type"):
        return
    kind = info.type.tensor_type
    _check_text(f"tensor '{info.name}'", (dim.dim_param for dim in kind.shape.dim if dim.HasField("dim_param")))
    if kind.elem_type not in TensorProto.DataType.values():
        raise ModelError(
            f"tensor '{info.name}' has element type {kind.elem_type}, which onnx does not know; update onnx"
        )


def _check_arity(node: NodeProto, opset: int) -> None:
    if node.domain not in ("", "ai.onnx") or not onnx.defs.has(node.op_type, "") or opset < 1:
        return
    try:
        schema = onnx.defs.get_schema(node.op_type, opset, "")
    except onnx.defs.SchemaError:
        return
    for kind, names, least in (("input", node.input, schema.min_input), ("output", node.output, schema.min_output)):
        if len(names) < least:
            raise ModelError(
                f"{_called(node)} has {len(names)} {kind}s, the operator needs at least {least}; export the model again"
            )


def _check_size(tensor: TensorProto) -> None:
    """Weights kept in the model as bytes must be as many as type and shape say; other kinds are left to onnx."""
    names = TensorProto.DataType
    is_known = tensor.data_type in names.values() and tensor.data_type not in (names.Value("UNDEFINED"),)
    if _is_external(tensor) or not is_known or names.Name(tensor.data_type) in _PACKED_TYPES:
        return
    count = math.prod(tensor.dims)
    if tensor.HasField("raw_data"):
        have, want, unit = len(tensor.raw_data), count * _item_size(tensor), "bytes"
    elif tensor.data_type == TensorProto.FLOAT:
        have, want, unit = len(tensor.float_data), count, "values"
    else:
        return
    if have != want:
        raise ModelError(
            f"weight '{tensor.name}' of shape {list(tensor.dims)} holds {have} {unit} instead of {want}; "
            "the file is damaged, export the model again"
        )


def _item_size(tensor: TensorProto) -> int:
    return int(onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type).itemsize)


def _is_external(tensor: TensorProto) -> bool:
    return bool(tensor.data_location == TensorProto.EXTERNAL)


def _bodies(node: NodeProto) -> Iterator[GraphProto]:
    for attribute in node.attribute:
        if attribute.type == AttributeProto.GRAPH:
            yield attribute.g
        yield from attribute.graphs


def _called(node: NodeProto) -> str:
    return f"node '{node.name}' ({node.op_type})" if node.name else f"a node without name ({node.op_type})"
