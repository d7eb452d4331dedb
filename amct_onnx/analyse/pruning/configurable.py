"""Between retrain configs and models: what a config's rules ask of a model, and what pruning asks of a config."""

from __future__ import annotations

from amct_onnx.analyse.pruning.options import Importance, LayerPruning, PruneOptions
from amct_onnx.config.retrain import RetrainConfig, RetrainFacts, TrainableLayer
from amct_onnx.graph.op_table import OPS, spec_of
from amct_onnx.graph.parts import Node
from amct_onnx.passes.pruning.groups import Group
from amct_onnx.rewrite.pruning import Prunable

_PRUNABLE = ("Conv", "ConvTranspose", "Gemm", "MatMul", "LSTM", "GRU", "RNN")


def retrain_facts(prunable: Prunable) -> RetrainFacts:
    """The facts about a model whose channels have been followed, none of them kept on request."""
    groups = {str(producer.node.name): group for group in prunable.groups for producer in group.producers}
    nodes = [node for graph in prunable.model.graphs() for node in graph.nodes]
    return RetrainFacts(
        layers={str(node.name): _layer(node, groups.get(str(node.name))) for node in nodes if spec_of(node).has_record},
        nodes={str(node.name): str(node.op) for node in nodes},
        layer_types=tuple(name for name, spec in OPS.items() if spec.has_record),
        prunable_types=_PRUNABLE,
    )


def prune_options(config: RetrainConfig, importance: Importance) -> PruneOptions:
    """The choices of a config for pruning channels; raises :class:`ConfigError` where it prunes no layer's."""
    layers = {name: LayerPruning(of.ratio, of.ascend_optimized) for name, of in config.pruned().items()}
    skip = {name: f"{layer.skipped}, skips '{name}'" for name, layer in config.layers.items() if layer.skipped}
    sparse = {name: f"'{name}' is to be thinned out 4:2 instead, which is not done yet" for name in config.sparse()}
    return PruneOptions(layers=layers, skip={**skip, **sparse}, importance=importance)


def _layer(node: Node, group: Group | None) -> TrainableLayer:
    stays = _why_none(node) if group is None else "" if group.is_free.any() else group.reason
    others = () if group is None else tuple(str(producer.node.name) for producer in group.producers)
    return TrainableLayer(
        op_type=str(node.op),
        kernel_rank=_kernel_rank(node),
        stays=stays,
        shares=tuple(name for name in others if name != node.name),
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
