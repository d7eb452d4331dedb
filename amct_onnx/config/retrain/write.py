"""A prune config as text, for those who found their ratios otherwise."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from amct_onnx.config.retrain.options import FilterPruning
from amct_onnx.prototext.write import quote, shortest


def format_prune_config(layers: Mapping[str, FilterPruning], whole: Iterable[str]) -> str:
    """A simple config that prunes these layers and no others.

    Args:
        layers: layer name -> how its output channels are pruned.
        whole: layers that are skipped.
    """
    entries = [_override(name, pruning) for name, pruning in layers.items()]
    entries += [f"regular_prune_skip_layers: {quote(name)}" for name in whole]
    return "\n".join(entries) + "\n"


def _override(name: str, pruning: FilterPruning) -> str:
    return (
        "override_layer_configs {\n"
        f"  layer_name: {quote(name)}\n"
        "  prune_config {\n"
        "    filter_pruner {\n"
        "      balanced_l2_norm_filter_prune {\n"
        f"        prune_ratio: {shortest(pruning.ratio)}\n"
        f"        ascend_optimized: {str(pruning.ascend_optimized).lower()}\n"
        "      }\n"
        "    }\n"
        "  }\n"
        "}"
    )
