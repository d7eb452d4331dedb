"""Layers that a caller wants left as they are."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from onnx import ModelProto

from amct_onnx.analyse.planner import check_names
from amct_onnx.errors import ArgumentError
from amct_onnx.graph import import_model, name_nodes
from amct_onnx.graph.op_table import spec_of


def check_skipped(proto: ModelProto, base_dir: Path | None, names: Collection[str]) -> None:
    """Raise :class:`ArgumentError` for a name that no layer of the model bears: skipping it would do nothing."""
    if not names:
        return
    model = import_model(proto, base_dir)
    name_nodes(model)
    check_names(model, names, "skip")
    for node in model.nodes():
        if node.name in names and spec_of(node).weight is None:
            raise ArgumentError(
                "{skip}: '{name}' is a {op_type}, which has no weight; name layers, as `amct_onnx inspect` lists them",
                name=node.name,
                op_type=node.op,
            )
