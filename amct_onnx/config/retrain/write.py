"""A prune config as text, for those who found their ratios, or their layers, otherwise."""

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
    return _text((_override(name, _filter_pruner(pruning)) for name, pruning in layers.items()), whole)


def format_sparsity_config(layers: Iterable[str], dense: Iterable[str]) -> str:
    """A simple config that thins out these layers 4:2 and no others.

    Args:
        layers: names of those that are thinned out.
        dense: layers that are skipped.
    """
    return _text((_override(name, _N_OUT_OF_M_PRUNER) for name in layers), dense)


def _text(overrides: Iterable[str], skipped: Iterable[str]) -> str:
    skips = [f"regular_prune_skip_layers: {quote(name)}" for name in skipped]
    return "\n".join([*overrides, *skips]) + "\n"


def _override(name: str, pruner: str) -> str:
    return f"override_layer_configs {{\n  layer_name: {quote(name)}\n  prune_config {{\n{pruner}  }}\n}}"


_N_OUT_OF_M_PRUNER = (
    "    n_out_of_m_pruner {\n"
    "      l1_selective_prune {\n"
    "        n_out_of_m_type: M4N2\n"
    "        update_freq: 0\n"
    "      }\n"
    "    }\n"
)


def _filter_pruner(pruning: FilterPruning) -> str:
    return (
        "    filter_pruner {\n"
        "      balanced_l2_norm_filter_prune {\n"
        f"        prune_ratio: {shortest(pruning.ratio)}\n"
        f"        ascend_optimized: {str(pruning.ascend_optimized).lower()}\n"
        "      }\n"
        "    }\n"
    )
