"""Do the names in a retrain config fit the model?"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from difflib import get_close_matches

from amct_onnx.config.name_rules import doubled
from amct_onnx.config.request import Named
from amct_onnx.config.retrain.facts import RetrainFacts
from amct_onnx.config.retrain.json_keys import ENABLE_KEYS, ROOT_KEYS
from amct_onnx.config.retrain.layer_types import PYTORCH_TYPES, layer_type
from amct_onnx.config.retrain.request import RetrainRequest
from amct_onnx.findings import Finding

_MOST_SUGGESTIONS = 3


def name_findings(request: RetrainRequest, facts: RetrainFacts) -> Iterator[Finding]:
    """Yield what is wrong with the names that a config gives: unknown, doubled, or of the wrong kind."""
    rules = _Rules(facts)
    if request.is_json:
        yield from rules.global_names()
    # Lists for both purposes stand in both, and count once here.
    both = (request.prune_skips, request.quant_skips)
    for field, names in {**both[0].layers, **both[1].layers}.items():
        if field in ENABLE_KEYS:  # of layers that are listed anyway
            continue
        yield from doubled(names, field)
        yield from rules.layers(names, field)
    for field, names in {**both[0].types, **both[1].types}.items():
        yield from doubled(names, field)
        yield from rules.types(names, field)
    listing = "the config" if request.is_json else "override_layer_configs"
    yield from doubled([named for named, _ in request.layers], listing)
    yield from rules.layers([named for named, _ in request.layers], listing)
    yield from doubled([named for named, _ in request.types], "override_layer_types")
    yield from rules.types([named for named, _ in request.types], "override_layer_types")
    yield from rules.overlaps([named for named, _ in request.types])
    for named, wishes in request.layers:
        layer = facts.layers.get(named.name)
        if wishes.prune is not None and layer is not None and layer.op_type not in facts.prunable_types:
            yield _not_pruned(named.name, wishes.prune.line, wishes.prune.where, layer.op_type)
    for named, wishes in request.types:
        known = layer_type(named.name, facts)
        if wishes.prune is not None and known and not set(known.operators) & set(facts.prunable_types):
            yield _not_pruned(named.name, wishes.prune.line, wishes.prune.where, known.operators[0])


def _not_pruned(name: str, line: int | None, where: str, op_type: str) -> Finding:
    return Finding(line, name, f"{where} prunes it, but a {op_type} is not pruned; delete that")


class _Rules:
    """The rules, with the model they ask."""

    def __init__(self, facts: RetrainFacts) -> None:
        self.facts = facts
        self.suggestions_left = _MOST_SUGGESTIONS  # each one compares a name with all of the model's

    def global_names(self) -> Iterator[Finding]:
        for name in sorted(self.facts.layers.keys() & set(ROOT_KEYS)):
            message = "a layer of the model bears the name of a global parameter; rename the node in the model"
            yield Finding(None, name, message)

    def layers(self, names: Iterable[Named], where: str) -> Iterator[Finding]:
        for name, line in _first_of_each(names):
            if name in self.facts.layers:
                continue
            if not name:
                yield Finding(line, "", f"{where} holds an empty name; delete it, or name a layer")
                continue
            if name in self.facts.nodes:
                message = f"{where} names it, but a {self.facts.nodes[name]} is no layer; delete its name there"
                yield Finding(line, name, message)
            else:
                remedy = self._near(name) or "`amct_onnx inspect` shows the names"
                yield Finding(line, name, f"{where} names it, but the model has no such node; {remedy}")

    def _near(self, name: str) -> str:
        if self.suggestions_left <= 0:
            return ""
        self.suggestions_left -= 1
        near = get_close_matches(name, self.facts.layers, n=1)
        return f'did you mean "{near[0]}"?' if near else ""

    def types(self, names: Iterable[Named], where: str) -> Iterator[Finding]:
        only_pruned = where.startswith("regular_prune")
        known = self.facts.prunable_types if only_pruned else self.facts.layer_types
        for name, line in _first_of_each(names):
            found = layer_type(name, self.facts)
            if found is not None and set(found.operators) & set(known):
                continue
            what = "pruned" if only_pruned else "pruned or quantized"
            others = [other for other, of in PYTORCH_TYPES.items() if set(of.operators) & set(known)]
            near = get_close_matches(name, [*known, *others], n=1)
            remedy = f"did you mean {near[0]}?" if near else f"choose from {', '.join(known)}"
            yield Finding(line, name, f"{where} names a type that is not {what}; {remedy}")

    def overlaps(self, names: Iterable[Named]) -> Iterator[Finding]:
        """Two entries, of different names, for the same layers."""
        names = list(_first_of_each(names))
        taken: Mapping[str, Named] = {}
        for named in names:
            found = layer_type(named.name, self.facts)
            own = [name for name, layer in self.facts.layers.items() if found is not None and found.holds(layer)]
            other = next((taken[name] for name in own if name in taken), None)
            if other is not None:
                message = (
                    f'override_layer_types names layers of "{other.name}" again (first on line {other.line}); '
                    "delete one of them"
                )
                yield Finding(named.line, named.name, message)
            taken = {**dict.fromkeys(own, named), **taken}


def _first_of_each(names: Iterable[Named]) -> Iterator[Named]:
    """Every name once, where it first stands."""
    seen: set[str] = set()
    for named in names:
        if named.name not in seen:
            seen.add(named.name)
            yield named
