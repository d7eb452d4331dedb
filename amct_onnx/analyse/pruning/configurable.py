"""Between retrain configs and models: what a config's rules ask of a model, and what pruning asks of a config."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from amct_onnx.analyse.pruning.channel_sensitivity import ChannelSensitivity
from amct_onnx.analyse.pruning.counts import ALIGNMENT
from amct_onnx.analyse.pruning.options import Importance, LayerPruning, PruneOptions, SearchGoal
from amct_onnx.analyse.pruning.plan import units_removed
from amct_onnx.config.auto_prune import AutoPruneConfig
from amct_onnx.config.retrain import (
    FilterPruning,
    LayerRetrain,
    RetrainConfig,
    RetrainFacts,
    RetrainRequest,
    TrainableLayer,
    resolve_retrain,
)
from amct_onnx.config.retrain.request import Asked, Wishes
from amct_onnx.graph import Model
from amct_onnx.graph.op_table import OPS, spec_of
from amct_onnx.graph.parts import Node
from amct_onnx.passes.pruning.groups import Group
from amct_onnx.passes.sparsity.candidates import OPERATORS, find_candidates
from amct_onnx.rewrite.pruning import Prunable, carriers

_PRUNABLE = ("Conv", "ConvTranspose", "Gemm", "MatMul", "LSTM", "GRU", "RNN")
_SEARCHED = FilterPruning(ratio=1.0, ascend_optimized=False)
"""What stands for a layer that a search decides: every ratio that somebody gives is smaller, so it counts."""


def retrain_facts(prunable: Prunable) -> RetrainFacts:
    """The facts about a model whose channels have been followed, none of them kept on request."""
    groups = {str(producer.node.name): group for group in prunable.groups for producer in group.producers}
    passed = carriers(prunable)
    dense = {refusal.node: refusal.reason for refusal in find_candidates(prunable.model).refusals}

    def layer(node: Node) -> TrainableLayer:
        return _layer(node, groups.get(str(node.name)), dense.get(str(node.name), ""), passed)

    return _facts(prunable.model, layer)


def quant_retrain_facts(model: Model) -> RetrainFacts:
    """The facts about a model, named, whose channels are nobody's concern."""
    return _facts(model, lambda node: _layer(node, None, "", {}))


def _facts(model: Model, layer: Callable[[Node], TrainableLayer]) -> RetrainFacts:
    nodes = [node for graph in model.graphs() for node in graph.nodes]
    return RetrainFacts(
        layers={str(node.name): layer(node) for node in nodes if spec_of(node).has_record},
        nodes={str(node.name): str(node.op) for node in nodes},
        layer_types=tuple(name for name, spec in OPS.items() if spec.has_record),
        prunable_types=_PRUNABLE,
        sparse_types=OPERATORS,
    )


def with_idle_layers(config: RetrainConfig, prunable: Prunable) -> RetrainConfig:
    """The config, with the reason for layers of whose channels none goes, though their ratio asks for it."""
    groups = {str(producer.node.name): group for group in prunable.groups for producer in group.producers}
    idle = {name: _why_idle(groups.get(name), of) for name, of in config.with_pruning().items()}
    layers = {name: replace(layer, why_none=idle.get(name, "")) for name, layer in config.layers.items()}
    return replace(config, layers=layers)


def _why_idle(group: Group | None, pruning: FilterPruning) -> str:
    if group is None:
        return ""
    if not group.readers:
        return "no layer reads its channels"
    count, reason = units_removed(group, LayerPruning(pruning.ratio, pruning.ascend_optimized))
    return "" if count else reason


def prune_options(config: RetrainConfig, importance: Importance | ChannelSensitivity) -> PruneOptions:
    """The choices of a config for pruning channels; raises :class:`ConfigError` where it prunes no layer's."""
    layers = {name: LayerPruning(of.ratio, of.ascend_optimized) for name, of in config.pruned().items()}
    sparse = {name: f"'{name}' is to be thinned out 4:2 instead" for name in config.sparse()}
    return PruneOptions(layers=layers, skip={**_skips(config), **sparse}, importance=importance)


def search_options(
    config: AutoPruneConfig, facts: RetrainFacts, importance: Importance | ChannelSensitivity
) -> tuple[PruneOptions, tuple[str, ...]]:
    """The choices of a config for a search, and its warnings; raises :class:`ConfigError` where it does not fit."""
    resolved = resolve_search(config, facts)
    layers = {
        name: LayerPruning(layer.pruning.ratio, layer.pruning.ascend_optimized)
        for name, layer in resolved.layers.items()
        if layer.pruning is not None and not is_searched(layer)
    }
    goal = SearchGoal(
        saving=config.saving,
        alignment=ALIGNMENT if config.ascend_optimized else 1,
        most=config.max_prune_ratio,
        feeds=config.test_iteration,
    )
    options = PruneOptions(layers=layers, skip=_skips(resolved), importance=importance, search=goal)
    return options, search_notes(config, resolved)


def resolve_search(config: AutoPruneConfig, facts: RetrainFacts) -> RetrainConfig:
    """What a search may do with each layer of a model, see :func:`is_searched`.

    Raises:
        ConfigError: the overrides do not fit the model.
    """
    overrides = config.overrides or RetrainRequest(source=config.source)
    return resolve_retrain(replace(overrides, of_all=Wishes(prune=Asked(_SEARCHED, "the search", None))), facts)


def is_searched(layer: LayerRetrain) -> bool:
    """Whether the search decides how much of a layer goes."""
    return layer.pruning == _SEARCHED


def search_notes(config: AutoPruneConfig, resolved: RetrainConfig) -> tuple[str, ...]:
    """The warnings of a config and of its overrides."""
    return tuple(f"{of.source}, {finding}" for of in (config, resolved) for finding in of.warnings)


def _skips(config: RetrainConfig) -> dict[str, str]:
    """Layers that a config leaves out -> where it says so."""
    return {name: f"{layer.skipped}, skips '{name}'" for name, layer in config.layers.items() if layer.skipped}


def _layer(node: Node, group: Group | None, dense: str, passed: Mapping[str, tuple[str, ...]]) -> TrainableLayer:
    stays = _why_none(node) if group is None else "" if group.is_free.any() else group.reason
    others = () if group is None else tuple(str(producer.node.name) for producer in group.producers)
    return TrainableLayer(
        op_type=str(node.op),
        kernel_rank=_kernel_rank(node),
        stays=stays,
        dense=dense,
        shares=tuple(name for name in others if name != node.name),
        carriers=() if group is None else passed[group.name],
        per_channel=spec_of(node).per_channel,
    )


def _why_none(node: Node) -> str:
    """Why no channels of a layer have been followed."""
    if int(node.attrs.get("group", 1)) > 1:
        return "its channels go with those that it reads"
    return "its channels cannot be followed: its weight is computed, or it lies in the body of a Loop or Scan"


def _kernel_rank(node: Node) -> int | None:
    """Spatial dimensions of the kernel; of the weight where no attribute gives them."""
    if not spec_of(node).config.has_kernel:
        return None
    kernel = node.attrs.get("kernel_shape")
    weight = node.inputs[1].shape if kernel is None and len(node.inputs) > 1 else None
    return len(kernel) if kernel is not None else None if weight is None else len(weight) - 2
