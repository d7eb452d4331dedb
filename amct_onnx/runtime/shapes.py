"""Shapes of tensors in one run, none of which is fetched."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import onnxruntime as ort
from numpy.typing import NDArray
from onnx import ModelProto, ValueInfoProto, helper

from amct_onnx.runtime.lending import Part
from amct_onnx.runtime.session import fetch, open_session


def run_shapes(
    proto: ModelProto, base_dir: Path | None, feed: Mapping[str, NDArray[Any]], names: Iterable[str]
) -> dict[str, tuple[int, ...]]:
    """Run a model, with a Shape behind every tensor that is asked about, so that none stays alive longer than it did.

    Args:
        proto: the model.
        base_dir: folder of its external weights.
        feed: one feed.
        names: tensors of the main graph.

    Raises:
        ModelError: the runtime refuses the model, as it does when one of them is a sequence.
        DataError: the model does not run on the feed.
    """
    graph = proto.graph
    shown = {f"amct_onnx.shape.{number}": name for number, name in enumerate(names)}
    nodes = [*graph.node, *(helper.make_node("Shape", [name], [output]) for output, name in shown.items())]
    outputs = [*graph.output, *(ValueInfoProto(name=output) for output in shown)]
    part = Part(nodes, graph.input, outputs, graph.value_info, {tensor.name for tensor in graph.initializer})
    options = ort.SessionOptions()
    # This order runs a Shape as soon as it can be run.
    options.execution_order = ort.ExecutionOrder.PRIORITY_BASED
    session = open_session(proto, base_dir=base_dir, part=part, options=options)
    found = fetch(session, list(shown), feed)
    return {name: tuple(map(int, sizes)) for name, sizes in zip(shown.values(), found, strict=True)}
