"""A retrain request and the facts about a model -> one resolved config."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TypeVar

from amct_onnx.config.retrain.facts import RetrainFacts, TrainableLayer
from amct_onnx.config.retrain.flows import Flow, flow_findings, in_flow
from amct_onnx.config.retrain.layer_types import layer_type
from amct_onnx.config.retrain.name_rules import name_findings
from amct_onnx.config.retrain.options import FilterPruning, Pruning, SelectivePruning, WeightQuant
from amct_onnx.config.retrain.plan import LayerRetrain, RetrainConfig
from amct_onnx.config.retrain.request import DEFAULT_DATA, DEFAULT_WEIGHT, Asked, RetrainRequest, Wishes
from amct_onnx.config.retrain.sharing import with_shared_channels
from amct_onnx.config.retrain.skipping import dead_overrides, skipped_by
from amct_onnx.config.retrain.widths import Widths
from amct_onnx.errors import ConfigError
from amct_onnx.findings import Finding, Severity, raise_findings

T = TypeVar("T")


def resolve_retrain(request: RetrainRequest, facts: RetrainFacts, flow: Flow = Flow.COMPRESSED) -> RetrainConfig:
    """Resolve a retrain config for a model.

    Args:
        request: what the config asks for.
        facts: the model.
        flow: what is done with it.

    Raises:
        ConfigError: one that lists everything that is wrong with the config, alone, with this model, or in this flow.
    """
    findings = [*request.findings, *flow_findings(request, flow)]
    request = in_flow(request, flow)
    findings += [*name_findings(request, facts), *dead_overrides(request, facts)]
    findings += [*_scale_findings(request, facts), *_unmoved(request, facts), *_never_quantized(request, facts)]
    own = {named.name: wishes for named, wishes in request.layers}
    widths = Widths(facts.quantization, request.of_all)
    layers = {name: _layer(name, layer, own.get(name), request, facts, widths) for name, layer in facts.layers.items()}
    findings += widths.findings()
    findings.sort(key=lambda finding: finding.line or 0)
    raise_findings(ConfigError, request.source, findings)
    blocks = [request.of_all, *(wishes for _, wishes in (*request.types, *request.layers))]
    asked = [wishes.prune.options for wishes in blocks if wishes.prune is not None]
    return RetrainConfig(
        layers=with_shared_channels(layers, facts),
        batch_num=request.batch_num,
        force_fp16_quant=request.force_fp16_quant,
        asks_pruning=any(isinstance(options, FilterPruning) for options in asked),
        asks_sparsity=any(isinstance(options, SelectivePruning) for options in asked),
        asks_quantization=any(wishes.data or wishes.weight for wishes in blocks),
        source=request.source,
        warnings=tuple(dict.fromkeys(findings)),
    )


def _layer(
    name: str,
    layer: TrainableLayer,
    own: Wishes | None,
    request: RetrainRequest,
    facts: RetrainFacts,
    widths: Widths,
) -> LayerRetrain:
    # Each part comes from the first block that gives it: the layer's own, its type's, the global one.
    chain = [own or Wishes(), *_of_type(layer, request, facts), request.of_all]
    prune = _first([wishes.prune for wishes in chain])
    skipped = skipped_by(name, request.prune_skips, facts)
    why_whole = skipped or _why_whole(layer, prune, facts)
    why_dense = skipped or _why_dense(layer, prune, facts)
    data, weight = _first([wishes.data for wishes in chain]), _first([wishes.weight for wishes in chain])
    why_float = skipped_by(name, request.quant_skips, facts)
    if data is None and weight is None:
        why_float = why_float or "no block quantizes it"
    why_float = why_float or _why_never(name, facts)
    data, weight = data or DEFAULT_DATA, weight or DEFAULT_WEIGHT
    of_data, of_weight = (None, None) if why_float else widths.fit(name, data, weight)
    if why_whole:
        prune = None
    parts = {"prune": prune} if why_float else {"prune": prune, "data": data, "weight": weight}
    pruning = None if prune is None else prune.options
    return LayerRetrain(
        op_type=layer.op_type,
        pruning=pruning if isinstance(pruning, FilterPruning) else None,
        sparsity=pruning if isinstance(pruning, SelectivePruning) else None,
        skipped=skipped,
        why_whole=why_whole,
        why_dense=why_dense,
        data=of_data,
        weight=None if of_weight is None else _fitting(of_weight, layer),
        why_float=why_float,
        origins={part: asked.origin for part, asked in parts.items() if asked is not None},
        shares=layer.shares,
    )


def _why_never(name: str, facts: RetrainFacts) -> str:
    """Why a layer cannot be quantized, whatever a config says; empty where it can, or where that is not asked."""
    known = facts.quantization
    if known is None or name in known.layers:
        return ""
    return known.refused.get(name, "it cannot be quantized here")


def _of_type(layer: TrainableLayer, request: RetrainRequest, facts: RetrainFacts) -> Iterator[Wishes]:
    for named, wishes in request.types:
        found = layer_type(named.name, facts)
        if found is not None and found.holds(layer):
            yield wishes


def _first(parts: list[Asked[T] | None]) -> Asked[T] | None:
    return next((part for part in parts if part is not None), None)


def _why_whole(layer: TrainableLayer, asked: Asked[Pruning] | None, facts: RetrainFacts) -> str:
    """Why a layer that is not skipped stays as it is; empty where it does not."""
    if layer.op_type not in facts.prunable_types:
        return f"a {layer.op_type} is not pruned"
    if asked is None:
        return "no block prunes it"
    return layer.stays if isinstance(asked.options, FilterPruning) else _why_dense(layer, asked, facts)


def _why_dense(layer: TrainableLayer, asked: Asked[Pruning] | None, facts: RetrainFacts) -> str:
    """Why the weights of a layer that is not skipped stay; empty where half of them go."""
    if layer.op_type not in facts.sparse_types:
        return f"a {layer.op_type} is not thinned out 4:2"
    if asked is None:
        return "no block thins it out"
    if isinstance(asked.options, FilterPruning):
        return "its block prunes channels instead"
    return layer.dense


def _fitting(weight: WeightQuant, layer: TrainableLayer) -> WeightQuant:
    """One scale where the layer's type has no other; else one per channel unless it is said."""
    wanted = True if weight.channel_wise is None else weight.channel_wise
    return replace(weight, channel_wise=wanted and layer.per_channel)


def _scale_findings(request: RetrainRequest, facts: RetrainFacts) -> Iterator[Finding]:
    """What blocks of layers and types ask for that their layers cannot have; global blocks leave it out."""
    of_types = ((named, wishes, _layers_of(named.name, facts)) for named, wishes in request.types)
    of_layers = ((named, wishes, [facts.layers.get(named.name)]) for named, wishes in request.layers)
    for named, wishes, layers in (*of_types, *of_layers):
        if wishes.weight is None or not wishes.weight.options.channel_wise:
            continue
        unfit = next((layer for layer in layers if layer is not None and not layer.per_channel), None)
        if unfit is not None:
            message = f"channel_wise: true is not possible for a {unfit.op_type}; write false"
            yield Finding(wishes.weight.line, named.name, message)


def _layers_of(type_name: str, facts: RetrainFacts) -> list[TrainableLayer | None]:
    found = layer_type(type_name, facts)
    return [layer for layer in facts.layers.values() if found is not None and found.holds(layer)]


def _never_quantized(request: RetrainRequest, facts: RetrainFacts) -> Iterator[Finding]:
    """Blocks that quantize a layer which cannot be."""
    for named, wishes in request.layers:
        reason = _why_never(named.name, facts) if named.name in facts.layers else ""
        if reason and (wishes.data or wishes.weight):
            message = f"the layer cannot be quantized: {reason}; delete what quantizes it"
            yield Finding(named.line, named.name, message)


def _unmoved(request: RetrainRequest, facts: RetrainFacts) -> Iterator[Finding]:
    """Blocks that prune a layer all of whose channels must stay."""
    for named, wishes in request.layers:
        layer = facts.layers.get(named.name)
        if layer is not None and layer.stays and wishes.prune and isinstance(wishes.prune.options, FilterPruning):
            message = f"none of its channels can go: {layer.stays}; its prune_config has no effect"
            yield Finding(wishes.prune.line, named.name, message, Severity.WARNING)
