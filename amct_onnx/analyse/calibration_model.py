"""The model that a user's own loop runs: the source with observers beside it, and what it carries for later."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from onnx import GraphProto, ModelProto

from amct_onnx.analyse.algorithms import Bounds
from amct_onnx.analyse.balance import channel_maxima, weight_maxima
from amct_onnx.analyse.options import PlanOptions
from amct_onnx.analyse.recorder_settings import RecorderSettings, WatchedChannels, WatchedRange
from amct_onnx.errors import ModelError
from amct_onnx.graph import BuiltModel, Model, build, import_model, name_nodes
from amct_onnx.graph.op_table import spread_types
from amct_onnx.graph.parts import Tensor
from amct_onnx.graph.shapes import infer_types
from amct_onnx.passes.insert_observers import DOMAIN, InsertObservers, Observation
from amct_onnx.passes.locate import Layer
from amct_onnx.passes.qdq_placement import output_bounds
from amct_onnx.rewrite import Prepared

METADATA = "amct_onnx.calibration"
"""Metadata entry of a calibration model; see :class:`CalibrationMark`."""


@dataclass(frozen=True)
class CalibrationMark:
    """What a calibration model says of itself.

    Attributes:
        source_sha256: digest of the source model.
        batch_num: number of runs.
        nodes: names of the nodes that were added.
        constants: names of the initializers that were added.
    """

    source_sha256: str
    batch_num: int
    nodes: tuple[str, ...]
    constants: tuple[str, ...]


@dataclass(frozen=True)
class CalibrationModel:
    """A model to run, and the recorder that watches it."""

    model: BuiltModel
    recorder: str


def balance_model(
    prepared: Prepared, layers: Sequence[Layer], options: PlanOptions, record: str, sha256: str
) -> CalibrationModel:
    """A model whose runs give the balance factors of the layers that are to be balanced."""
    balanced = [layer for layer in layers if options.of(layer.name).migration_strength is not None]
    keys = _keys(balanced)
    channels = tuple(
        WatchedChannels(
            layer.name,
            keys[layer.name],
            options.of(layer.name).migration_strength or 0.5,
            tuple(weight_maxima(layer).tolist()),
        )
        for layer in balanced
    )
    settings = RecorderSettings(record, options.feeds or 1, channels=channels)

    def observe(layer: Layer, observation: Observation) -> Observation:
        seen = channel_maxima(layer)
        return Observation(
            observation.node, observation.tensor, observation.key, channels=seen.maxima.size, axis=seen.axis
        )

    return _calibration_model(prepared, balanced, keys, settings, sha256, observe)


def range_model(
    prepared: Prepared, layers: Sequence[Layer], options: PlanOptions, record: str, sha256: str
) -> CalibrationModel:
    """A model whose runs give the activation scales of `layers`."""
    keys = _keys(layers)
    ranges = tuple(
        WatchedRange(
            layer.name,
            keys[layer.name],
            options.of(layer.name).activation,
            Bounds(*output_bounds(layer.activation)),
        )
        for layer in layers
    )
    settings = RecorderSettings(record, options.feeds or 1, ranges=ranges, force_fp16=options.force_fp16)

    def observe(layer: Layer, observation: Observation) -> Observation:
        change = prepared.divided.get(layer.activation.name)
        factor = None if change is None else change.inverse
        return Observation(observation.node, observation.tensor, observation.key, factor)

    return _calibration_model(prepared, layers, keys, settings, sha256, observe)


def _keys(layers: Iterable[Layer]) -> dict[str, str]:
    """Layer name -> the name of the first layer that reads the same tensor; that is what it is observed under."""
    first: dict[int, str] = {}
    return {layer.name: first.setdefault(id(layer.activation), layer.name) for layer in layers}


def _calibration_model(
    prepared: Prepared,
    layers: Sequence[Layer],
    keys: dict[str, str],
    settings: RecorderSettings,
    sha256: str,
    observe: Callable[[Layer, Observation], Observation],
) -> CalibrationModel:
    proto, base_dir = prepared.model.proto, prepared.model.base_dir
    model = import_model(proto, base_dir)
    name_nodes(model)
    spread_types(model)
    before = _names(model)
    nodes = {node.name: node for graph in model.graphs() for node in graph.nodes}
    tensors = {tensor.name: tensor for tensor in _tensors(model)}
    observations = []
    for layer in layers:
        if keys[layer.name] == layer.name:
            node = nodes[layer.name]
            change = prepared.divided.get(layer.activation.name)
            name = layer.activation.name if change is None else change.source
            plain = Observation(node, tensors.get(name, node.inputs[0]), layer.name)
            observations.append(observe(layer, plain))
    recorder = settings.identity(sha256)
    InsertObservers(recorder, settings.to_json(), observations, infer_types(proto, base_dir)).run(model)
    after = _names(model)
    added = [[name for name in new if name not in old] for new, old in zip(after, before, strict=True)]
    mark = {"source_sha256": sha256, "batch_num": settings.batch_num, "nodes": added[0], "constants": added[1]}
    model.metadata[METADATA] = json.dumps(mark, separators=(",", ":"))
    return CalibrationModel(build(model), recorder)


def _tensors(model: Model) -> Iterable[Tensor]:
    yield from model.graph.inputs
    for node in model.graph.nodes:
        yield from node.outputs


def _names(model: Model) -> tuple[dict[str, None], dict[str, None]]:
    """Names of all nodes, and of the initializers of the main graph."""
    nodes = {node.name: None for graph in model.graphs() for node in graph.nodes}
    return nodes, dict.fromkeys(model.graph.initializers)


def without_observers(proto: ModelProto, path: Path | str) -> tuple[ModelProto, CalibrationMark]:
    """The source model with names for all nodes, and what the calibration model says of itself.

    Args:
        proto: a calibration model; changed in place.
        path: what errors name.

    Raises:
        ModelError: it is no calibration model.
    """
    entry = next((entry for entry in proto.metadata_props if entry.key == METADATA), None)
    if entry is None:
        raise ModelError(f"{path}: this is no model that quantize_model wrote; give its modified_onnx_file")
    try:
        data = json.loads(entry.value)
        mark = CalibrationMark(
            str(data["source_sha256"]), int(data["batch_num"]), tuple(data["nodes"]), tuple(data["constants"])
        )
    except (ValueError, KeyError, TypeError) as error:
        raise ModelError(f"{path}: its metadata entry '{METADATA}' is damaged; run quantize_model again") from error
    proto.metadata_props.remove(entry)
    nodes, constants = set(mark.nodes), set(mark.constants)
    _drop(proto.graph.initializer, lambda tensor: tensor.name in constants)
    _drop(proto.opset_import, lambda version: version.domain == DOMAIN)
    _drop_nodes(proto.graph, nodes)
    return proto, mark


def _drop_nodes(graph: GraphProto, names: set[str]) -> None:
    _drop(graph.node, lambda node: node.name in names)
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.HasField("g"):
                _drop_nodes(attribute.g, names)


def _drop(items: Any, unwanted: Callable[[Any], bool]) -> None:
    """Delete from a repeated field in place; what stays is not copied."""
    for index in reversed(range(len(items))):
        if unwanted(items[index]):
            del items[index]
