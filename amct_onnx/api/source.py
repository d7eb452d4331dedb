"""Models as callers give them: read, and checked for what every later step takes for granted."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeAlias

from onnx import GraphProto, ModelProto, NodeProto, TensorProto

from amct_onnx.api.soundness import called, check_graph
from amct_onnx.errors import AmctError, ModelError
from amct_onnx.graph import read_model
from amct_onnx.graph.protos import nested_tensors, node_bodies
from amct_onnx.graph.weights import StoredValues
from amct_onnx.passes.insert_observers import DOMAIN, OBSERVE, RUN_END
from amct_onnx.runtime import open_session

Source: TypeAlias = str | os.PathLike[str] | ModelProto

_DEPLOY_TYPES = {"AscendQuant", "AscendDequant"}
_FAKE_QUANT = re.compile(r"\.(?:quant|dequant)\.fakequant(?:\.|$)")


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
    check_graph(proto.graph, frozenset(), opset)
    return proto, base_dir


def refuse_compressed(proto: ModelProto) -> None:
    """Raise :class:`ModelError` if a model was made from another on the way of compressing it: give that one."""
    for node in _all_nodes(proto.graph):
        form = _form(node)
        if form:
            raise ModelError(
                f"{called(node)} shows that this is a {form} model already; give the float model that it was made from"
            )


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
    tensors = (*proto.graph.initializer, *nested_tensors(proto))
    stored = (StoredValues(tensor, base_dir) for tensor in tensors if _is_external(tensor))
    return tuple(dict.fromkeys([*own, *(values.location()[0] for values in stored)]))


def _form(node: NodeProto) -> str:
    """What kind of made model a node shows; empty for a node of a source model."""
    if node.domain == DOMAIN:
        # AMCT's own calibration and fake-quant models have their operators in this domain as well.
        return "calibration" if node.op_type in (OBSERVE, RUN_END) else "calibration or fake-quant"
    if node.op_type in _DEPLOY_TYPES:
        return "deploy"
    return "fake-quant" if _FAKE_QUANT.search(node.name) else ""


def _is_external(tensor: TensorProto) -> bool:
    return bool(tensor.data_location == TensorProto.EXTERNAL)


def _all_nodes(graph: GraphProto) -> Iterator[NodeProto]:
    for node in graph.node:
        yield node
        for body in node_bodies(node):
            yield from _all_nodes(body)
