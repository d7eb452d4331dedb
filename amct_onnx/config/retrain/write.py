"""A prune config as text, for those who found their ratios otherwise."""

from __future__ import annotations

from collections.abc import Mapping

from amct_onnx.prototext.write import quote, shortest


def format_prune_config(ratios: Mapping[str, float]) -> str:
    """A simple config that prunes these layers by these ratios and no others.

    Args:
        ratios: layer name -> share of its output channels that goes, above 0 and below 1.
    """
    return "\n".join(_override(name, ratio) for name, ratio in ratios.items()) + "\n"


def _override(name: str, ratio: float) -> str:
    return (
        "override_layer_configs {\n"
        f"  layer_name: {quote(name)}\n"
        "  prune_config {\n"
        "    filter_pruner {\n"
        "      balanced_l2_norm_filter_prune {\n"
        f"        prune_ratio: {shortest(ratio)}\n"
        "        ascend_optimized: false\n"
        "      }\n"
        "    }\n"
        "  }\n"
        "}"
    )
