"""Which list leaves a layer out, and which blocks therefore say something for nobody."""

from __future__ import annotations

from collections.abc import Iterator

from amct_onnx.config.request import Named, origin
from amct_onnx.config.retrain.facts import RetrainFacts
from amct_onnx.config.retrain.layer_types import layer_type
from amct_onnx.config.retrain.request import RetrainRequest, Skips, Wishes
from amct_onnx.findings import Finding


def skipped_by(name: str, skips: Skips, facts: RetrainFacts) -> str:
    """Where a layer is left out, in words; empty where it is not."""
    for field, names in skips.layers.items():
        for named in names:
            if named.name == name:
                return origin(field, named.line)
    layer = facts.layers.get(name)
    for field, names in skips.types.items():
        for named in names:
            found = layer_type(named.name, facts)
            if found is not None and layer is not None and found.holds(layer):
                return origin(field, named.line)
    return ""


def dead_overrides(request: RetrainRequest, facts: RetrainFacts) -> Iterator[Finding]:
    """Yield a finding for every block of a layer or type that counts for no layer."""
    for named, wishes in request.layers:
        for what, skips, _ in _parts(request, wishes):
            if where := skipped_by(named.name, skips, facts):
                yield _skipped(named, "override_layer_configs", what, where)
    for named, wishes in request.types:
        yield from _dead_type(request, facts, named, wishes)


def _dead_type(request: RetrainRequest, facts: RetrainFacts, named: Named, wishes: Wishes) -> Iterator[Finding]:
    found = layer_type(named.name, facts)
    own = [name for name, layer in facts.layers.items() if found is not None and found.holds(layer)]
    for what, skips, counts_in in _parts(request, wishes):
        if where := _type_skipped_by(named.name, skips):
            yield _skipped(named, "override_layer_types", what, where)
            continue
        if not own:
            continue
        if all(skipped_by(name, skips, facts) for name in own):
            yield _skipped(named, "override_layer_types", what, skipped_by(own[0], skips, facts))
        elif all(name in counts_in or skipped_by(name, skips, facts) for name in own):
            message = (
                f"override_layer_types gives {what}, but every layer of the type has a block of its own; delete it"
            )
            yield Finding(named.line, named.name, message)
    if found is not None and not own:
        message = "override_layer_types names a type of which the model has no layer; delete the block"
        yield Finding(named.line, named.name, message)


def _parts(request: RetrainRequest, wishes: Wishes) -> Iterator[tuple[str, Skips, set[str]]]:
    """What a block gives: how it is called, what leaves it out, which layers have the same in blocks of their own."""
    if wishes.prune is not None:
        yield "prune_config", request.prune_skips, {name for (name, _), own in request.layers if own.prune is not None}
    if wishes.data is not None or wishes.weight is not None:
        same = {
            name
            for (name, _), own in request.layers
            if (own.data is not None or wishes.data is None) and (own.weight is not None or wishes.weight is None)
        }
        yield "its quantization", request.quant_skips, same


def _type_skipped_by(name: str, skips: Skips) -> str:
    """The list that holds this very type, known or not."""
    lists = ((field, named) for field, names in skips.types.items() for named in names)
    return next((origin(field, named.line) for field, named in lists if named.name == name), "")


def _skipped(named: Named, field: str, what: str, where: str) -> Finding:
    message = f"{field} gives {what} for what {where}, leaves out, and skipping wins; delete one of them"
    return Finding(named.line, named.name, message)
