"""A model and a retrain config brought together."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TypeAlias

from onnx import ModelProto

from amct_onnx.analyse.configurable import model_facts
from amct_onnx.analyse.cost import Shapes
from amct_onnx.analyse.pruning.configurable import (
    quant_retrain_facts,
    resolve_search,
    retrain_facts,
    with_idle_layers,
)
from amct_onnx.api.prune_source import load_float, prune_source
from amct_onnx.api.source import Source, blaming_illegal_models
from amct_onnx.config.auto_prune import AutoPruneConfig, is_auto_prune
from amct_onnx.config.retrain import (
    Flow,
    RetrainConfig,
    RetrainFacts,
    RetrainRequest,
    parse_retrain_request,
    resolve_retrain,
)
from amct_onnx.config.text_file import read_config
from amct_onnx.errors import ConfigError
from amct_onnx.graph.functions import inline_layer_functions
from amct_onnx.rewrite import prepare
from amct_onnx.rewrite.pruning import Prunable, open_layers, open_prunable

_QUANTIZE = "quantize the result, or let `amct_onnx compress` do everything"

PruneConfigSource: TypeAlias = str | os.PathLike[str] | RetrainRequest | RetrainConfig


def resolve_prune_config(
    model: Source,
    config: PruneConfigSource,
    *,
    input_shapes: Mapping[str, Sequence[int]] | None = None,
    flow: Flow = Flow.COMPRESSED,
) -> RetrainConfig:
    """Resolve an AMCT retrain config for a model.

    Args:
        model: path of an ONNX file, or a ModelProto (not changed).
        config: path of a simple config or a JSON config, or one read by :mod:`amct_onnx.config.retrain`.
        input_shapes: input -> sizes to take for the free ones while following channels.
        flow: what is to be done with it.

    Raises:
        ConfigError: the config cannot be read, breaks a rule, or does not fit the model or the flow.
    """
    with _followed(model, input_shapes, flow) as (facts, prunable):
        return with_idle_layers(_resolved(config, facts, flow), prunable)


def resolve_quant_retrain(model: Source, config: PruneConfigSource) -> RetrainConfig:
    """Resolve an AMCT retrain config that only quantizes: every layer, by defaults where it says nothing else.

    Args:
        model: path of an ONNX file, or a ModelProto (not changed).
        config: as for :func:`resolve_prune_config`.

    Raises:
        ConfigError: the config cannot be read, breaks a rule, prunes, does not fit the model, or leaves no layer.
    """
    whole, base_dir = load_float(model)
    with blaming_illegal_models(whole, base_dir):
        opened = open_layers(inline_layer_functions(whole, base_dir), base_dir)
        facts = _with_quantization(quant_retrain_facts(opened), whole, base_dir, Flow.QUANT)
    resolved = _resolved(config, facts, Flow.QUANT)
    resolved.check_quantizes()
    return resolved


def resolve_auto_config(
    model: Source, config: AutoPruneConfig, *, input_shapes: Mapping[str, Sequence[int]] | None = None
) -> RetrainConfig:
    """Resolve the config of a search for a model: what the search may do with each layer.

    Args:
        model: path of an ONNX file, or a ModelProto (not changed).
        config: the config.
        input_shapes: input -> sizes to take for the free ones while following channels.

    Raises:
        ConfigError: its overrides do not fit the model.
    """
    with _followed(model, input_shapes, Flow.PRUNE) as (facts, _):
        return resolve_search(config, facts)


@contextmanager
def _followed(
    model: Source, input_shapes: Mapping[str, Sequence[int]] | None, flow: Flow
) -> Iterator[tuple[RetrainFacts, Prunable]]:
    """The facts about a model, and its channels; what goes wrong with them is blamed on a model that is not legal."""
    whole, base_dir = load_float(model)
    with blaming_illegal_models(whole, base_dir):
        source = prune_source(whole, base_dir, input_shapes=input_shapes)
        prunable = open_prunable(source.proto, base_dir, source.shapes)
        yield _with_quantization(retrain_facts(prunable), whole, base_dir, flow), prunable


def configure_pruning(
    proto: ModelProto, base_dir: Path | None, shapes: Shapes, config: PruneConfigSource, flow: Flow
) -> RetrainConfig:
    """Resolve a config for a model whose tensors have these sizes; see :func:`resolve_prune_config`."""
    facts = retrain_facts(open_prunable(proto, base_dir, shapes))
    return _resolved(config, _with_quantization(facts, proto, base_dir, flow), flow)


def _with_quantization(facts: RetrainFacts, proto: ModelProto, base_dir: Path | None, flow: Flow) -> RetrainFacts:
    """The facts with those about quantizing, where that is to be done."""
    if flow is Flow.PRUNE:
        return facts
    return replace(facts, quantization=model_facts(prepare(proto, base_dir).model))


def _resolved(config: PruneConfigSource, facts: RetrainFacts, flow: Flow) -> RetrainConfig:
    request = config if isinstance(config, RetrainRequest | RetrainConfig) else _read(config)
    if isinstance(request, RetrainRequest):
        return resolve_retrain(request, facts, flow)
    differing = request.layers.keys() ^ facts.layers.keys()
    if differing:
        raise ConfigError(
            f"{request.source or 'the config'} was resolved for another model: only one of them has layer "
            f"'{min(differing)}'; resolve it for this model"
        )
    return request


def _read(path: str | os.PathLike[str]) -> RetrainRequest:
    text = read_config(path)
    if is_auto_prune(text):
        raise ConfigError(
            f"{os.fspath(path)} is the config of a search for prune ratios; `amct_onnx prune` takes it as --auto-config"
        )
    return parse_retrain_request(text, source=os.fspath(path))


def retrain_notes(
    config: RetrainConfig, *, channels: bool = False, weights: bool = False, scales: bool = False
) -> tuple[str, ...]:
    """What a report should say of a config: its warnings, and what of it is not done here.

    Args:
        config: the config.
        channels: whether channels are pruned here.
        weights: whether weights are thinned out here.
        scales: whether layers are quantized here.
    """
    return tuple(_notes(config, channels=channels, weights=weights, scales=scales))


def _notes(config: RetrainConfig, *, channels: bool, weights: bool, scales: bool) -> Iterator[str]:
    yield from (f"{config.source}, {finding}" for finding in config.warnings)
    if not channels and (pruned := config.with_pruning()):
        yield f"{config.source}: the channels of {_layers(pruned)} are not pruned here; `amct_onnx prune` does that"
    if not weights and (sparse := config.sparse()):
        yield f"{config.source}: {_layers(sparse)} is not thinned out 4:2 here; `amct_onnx sparsify` does that"
    if not scales and (quantized := config.quantized()):
        yield f"{config.source}: {_layers(quantized)} is not quantized here; {_QUANTIZE}"


def _layers(names: Mapping[str, object] | Sequence[str]) -> str:
    first = next(iter(names))
    return f"'{first}'" if len(names) == 1 else f"each of {len(names)} layers, like '{first}',"
