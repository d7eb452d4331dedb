"""The model that a user's own loop runs: the source with observers beside it, and what it carries for later."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from onnx import GraphProto, ModelProto

from amct_onnx.analyse.algorithms import Bounds
from amct_onnx.analyse.balance import channel_maxima, weight_maxima
from amct_onnx.analyse.input_wishes import InputWish
from amct_onnx.analyse.options import PlanOptions
from amct_onnx.analyse.recorder_settings import RecorderSettings, WatchedChannels, WatchedRange
from amct_onnx.errors import ModelError
from amct_onnx.graph import BuiltModel, Model, build, import_model, name_nodes
from amct_onnx.graph.element_types import settle_types
from amct_onnx.graph.parts import Node, Tensor
from amct_onnx.graph.shapes import infer_types
from amct_onnx.passes.insert_observers import DOMAIN, InsertObservers, Observation
from amct_onnx.passes.locate import Layer
from amct_onnx.passes.qdq_placement import output_bounds
from amct_onnx.passes.recurrent import HIDDEN, RecurrentLayer
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


@dataclass(frozen=True)
class _Target:
    """Something to watch, in the prepared model: the key of its record entry, a reading node, the tensor it reads.

    A recurrent layer's hidden states are shown under one key; some of them are its results.
    """

    name: str
    node: Node
    tensor: Tensor
    is_result: bool = False


def balance_model(
    prepared: Prepared, layers: Sequence[Layer], options: PlanOptions, record: str, sha256: str
) -> CalibrationModel:
    """A model whose runs give the balance factors of the layers that are to be balanced."""
    balanced = {layer.name: layer for layer in layers if options.of(layer.name).migration_strength is not None}
    targets = [_Target(layer.name, layer.node, layer.activation) for layer in balanced.values()]
    keys = _keys(prepared.model, targets)
    channels = tuple(
        WatchedChannels(
            name, keys[name], options.of(name).migration_strength or 0.5, tuple(weight_maxima(layer).tolist())
        )
        for name, layer in balanced.items()
    )
    settings = RecorderSettings(record, options.feeds or 1, channels=channels)

    def observe(observation: Observation) -> Observation:
        seen = channel_maxima(prepared, balanced[observation.key])
        return replace(observation, channels=seen.maxima.size, axis=seen.axis)

    return _calibration_model(prepared, targets, settings, sha256, observe)


def range_model(
    prepared: Prepared,
    layers: Sequence[Layer | RecurrentLayer],
    inputs: Sequence[InputWish],
    options: PlanOptions,
    record: str,
    sha256: str,
    results: Mapping[str, Tensor] = MappingProxyType({}),
) -> CalibrationModel:
    """A model whose runs give the activation scales of `layers` and of single `inputs`.

    `results` are further tensors to watch: layer name -> its result.
    """
    recurrent = [layer for layer in layers if isinstance(layer, RecurrentLayer)]
    targets = [_Target(layer.name, layer.node, layer.activation) for layer in layers]
    choices = [options.of(layer.name).activation for layer in layers]
    targets += [_Target(wish.site.key, wish.site.node, wish.site.tensor) for wish in inputs]
    choices += [wish.activation for wish in inputs]
    keys = _keys(prepared.model, targets)
    ranges = tuple(
        WatchedRange(target.name, keys[target.name], choice, Bounds(*output_bounds(target.tensor)))
        for target, choice in zip(targets, choices, strict=True)
    )
    ranges += tuple(
        WatchedRange(layer.name, state_key(layer.name), options.of(layer.name).activation, Bounds(), is_state=True)
        for layer in recurrent
    )
    settings = RecorderSettings(record, options.feeds or 1, ranges=ranges, force_fp16=options.force_fp16)
    further = [target for layer in recurrent for target in _state_targets(layer)]
    further += [_Target(result_key(name), tensor.inputs[0], tensor, is_result=True) for name, tensor in results.items()]
    divided = {target.name: prepared.origin_of(target.tensor.name).change for target in targets}

    def observe(observation: Observation) -> Observation:
        change = divided.get(observation.key)
        return observation if change is None else replace(observation, factor=change.inverse)

    return _calibration_model(prepared, targets, settings, sha256, observe, further)


def state_key(layer: str) -> str:
    """What a recurrent layer's hidden states are shown as, and where a calibration keeps their statistics."""
    return f"state of {layer}"


def result_key(layer: str) -> str:
    """The same of a layer's result."""
    return f"result of {layer}"


def _state_targets(layer: RecurrentLayer) -> list[_Target]:
    """All of the layer's hidden states that can be seen, under one key."""
    results = {id(tensor) for tensor in layer.node.outputs}
    key = state_key(layer.name)
    return [_Target(key, layer.node, tensor, is_result=id(tensor) in results) for tensor in layer.states]


def shared_keys(model: Model, layers: Iterable[Layer | RecurrentLayer]) -> dict[str, str]:
    """Name of each layer of `model` -> the key under which its data input is observed."""
    return _keys(model, [_Target(layer.name, layer.node, layer.activation) for layer in layers])


def _keys(model: Model, targets: Iterable[_Target]) -> dict[str, str]:
    """Name of each -> that of the first one that reads the same tensor in the same graph; both are observed under it.

    A body may not run at all, or see other values of a tensor from outside than another body does.
    """
    place = _graphs_of_nodes(model)
    first: dict[tuple[int, int], str] = {}
    return {
        target.name: first.setdefault((place[target.node.name], id(target.tensor)), target.name) for target in targets
    }


def _graphs_of_nodes(model: Model) -> dict[str, int]:
    """Name of each node -> the number of its graph, the main one being 0."""
    return {node.name: number for number, graph in enumerate(model.graphs()) for node in graph.nodes}


def _calibration_model(
    prepared: Prepared,
    targets: Sequence[_Target],
    settings: RecorderSettings,
    sha256: str,
    observe: Callable[[Observation], Observation],
    further: Sequence[_Target] = (),
) -> CalibrationModel:
    """The source with names for all nodes, and an observer for each tensor that a target reads, and for `further`."""
    proto, base_dir = prepared.model.proto, prepared.model.base_dir
    model = import_model(proto, base_dir)
    name_nodes(model)
    settle_types(model)
    before = _names(model)
    nodes = {node.name: node for node in model.nodes()}
    tensors = {tensor.name: tensor for tensor in _tensors(model)}
    observed = set(_keys(prepared.model, targets).values())
    observations = []
    for target in (target for target in targets if target.name in observed):
        name = prepared.origin_of(target.tensor.name).name
        node = nodes[target.node.name]
        observations.append(observe(Observation(node, tensors.get(name, node.inputs[0]), target.name)))
    place = _graphs_of_nodes(model)
    # Tensors of different bodies may have one name.
    makers = {(place[node.name], tensor.name): (node, tensor) for node in model.nodes() for tensor in node.outputs}
    for target in further:
        node = nodes[target.node.name]
        if target.is_result:
            # Its own nodes of the source may have been folded into the layer.
            node, tensor = makers[place[node.name], prepared.origin_of(target.tensor.name).name]
        else:
            tensor = node.inputs[HIDDEN]
        observations.append(Observation(node, tensor, target.name, is_result=target.is_result))
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
    return {node.name: None for node in model.nodes()}, dict.fromkeys(model.graph.initializers)


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
