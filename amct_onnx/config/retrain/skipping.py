"""Which list leaves a layer out, and which blocks therefore count for nobody."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from amct_onnx.config.request import Named
from amct_onnx.config.retrain.facts import RetrainFacts
from amct_onnx.config.retrain.layer_types import layer_type
from amct_onnx.config.retrain.request import RetrainRequest, Skips, Wishes
from amct_onnx.findings import Finding


def skipped_by(name: str, skips: Skips, facts: RetrainFacts) -> str:
    """Where a layer is left out, in words; empty where it is not."""
    if name in skips.layer_origins:
        return skips.layer_origins[name]
    layer = facts.layers.get(name)
    for type_name, where in skips.type_origins.items():
        found = layer_type(type_name, facts)
        if found is not None and layer is not None and found.holds(layer):
            return where
    return ""


def dead_overrides(request: RetrainRequest, facts: RetrainFacts) -> Iterator[Finding]:
    """Yield a finding for every block of a layer or type that counts for no layer."""
    for named, wishes in request.layers:
        for part in _parts(request, wishes):
            if where := skipped_by(named.name, part.skips, facts):
                yield _skipped(named, "override_layer_configs", part.what, where)
    for named, wishes in request.types:
        yield from _dead_type(request, facts, named, wishes)


class _Part(NamedTuple):
    """What a block gives, how it is called, and what leaves layers out of it."""

    what: str
    names: tuple[str, ...]
    skips: Skips


def _parts(request: RetrainRequest, wishes: Wishes) -> Iterator[_Part]:
    if wishes.prune is not None:
        yield _Part("prune_config", ("prune",), request.prune_skips)
    given = tuple(name for name in ("data", "weight") if getattr(wishes, name) is not None)
    if given:
        yield _Part("its quantization", given, request.quant_skips)


def _dead_type(request: RetrainRequest, facts: RetrainFacts, named: Named, wishes: Wishes) -> Iterator[Finding]:
    found = layer_type(named.name, facts)
    own = [name for name, layer in facts.layers.items() if found is not None and found.holds(layer)]
    if found is not None and not own:
        message = "override_layer_types names a type of which the model has no layer; delete the block"
        yield Finding(named.line, named.name, message)
    for part in _parts(request, wishes):
        left_out = part.skips.type_origins.get(named.name, "")
        skipped = {name: where for name in own if (where := skipped_by(name, part.skips, facts))}
        own_blocks = {name for (name, _), of in request.layers if all(getattr(of, field) for field in part.names)}
        if left_out or (own and len(skipped) == len(own)):
            yield _skipped(named, "override_layer_types", part.what, left_out or skipped[own[0]])
        elif own and all(name in skipped or name in own_blocks for name in own):
            message = f"override_layer_types gives {part.what}, but every layer of the type has a block of its own"
            yield Finding(named.line, named.name, f"{message}; delete it")


def _skipped(named: Named, field: str, what: str, where: str) -> Finding:
    message = f"{field} gives {what} for what {where}, leaves out, and skipping wins; delete one of them"
    return Finding(named.line, named.name, message)
