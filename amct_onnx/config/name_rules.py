"""Do the names in a config fit the model?"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from difflib import get_close_matches

from amct_onnx.config.facts import ModelFacts
from amct_onnx.config.json_keys import ROOT_KEYS
from amct_onnx.config.request import InputWish, Named, Request
from amct_onnx.findings import Finding, Severity

_MOST_SUGGESTIONS = 3


def name_findings(request: Request, facts: ModelFacts) -> Iterator[Finding]:
    """Yield what is wrong with the names that a config gives: unknown, doubled, or of the wrong kind."""
    rules = _Rules(facts)
    yield from rules.global_names()
    yield from rules.skipped(request.skip_layers)
    yield from rules.types(request.skip_types, "skip_layer_types")
    yield from rules.types([named for named, _ in request.types], "override_layer_types")
    yield from rules.overridden([named for named, _ in request.layers])
    yield from rules.fusing(request.skip_fusion_layers)
    yield from rules.inputs(request.inputs)


class _Rules:
    """The rules, with the model they ask."""

    def __init__(self, facts: ModelFacts) -> None:
        self.facts = facts
        self.suggestions_left = _MOST_SUGGESTIONS  # each one compares a name with all of the model's

    def global_names(self) -> Iterator[Finding]:
        for name in self.facts.layers.keys() & set(ROOT_KEYS):
            message = "a layer of the model bears the name of a global parameter; rename the node in the model"
            yield Finding(None, name, message)

    def skipped(self, names: Iterable[Named]) -> Iterator[Finding]:
        names = tuple(names)
        yield from doubled(names, "skip_layers")
        for name, line in names:
            if name in self.facts.refused:
                message = f"skip_layers names it, but it stays float anyway: {self.facts.refused[name]}"
                yield Finding(line, name, message, Severity.WARNING)
            else:
                yield from self._layer(name, line, "skip_layers")

    def overridden(self, names: Iterable[Named]) -> Iterator[Finding]:
        names = tuple(names)
        yield from doubled(names, "override_layer_configs")
        for name, line in names:
            if name in self.facts.refused:
                message = f"the layer cannot be quantized: {self.facts.refused[name]}; delete its block"
                yield Finding(line, name, message)
            else:
                yield from self._layer(name, line, "the config")

    def _layer(self, name: str, line: int | None, where: str) -> Iterator[Finding]:
        if name in self.facts.layers:
            return
        if name in self.facts.nodes:
            message = f"{where} names it, but a {self.facts.nodes[name]} cannot be quantized; delete its name there"
            yield Finding(line, name, message)
        else:
            yield self._unknown(name, line, where, self.facts.layers)

    def _unknown(self, name: str, line: int | None, where: str, candidates: Iterable[str]) -> Finding:
        near: list[str] = []
        if self.suggestions_left > 0:
            self.suggestions_left -= 1
            near = get_close_matches(name, [*candidates], n=1)
        remedy = f'did you mean "{near[0]}"?' if near else "`amct_onnx inspect` shows the names"
        return Finding(line, name, f"{where} names it, but the model has no such node; {remedy}")

    def types(self, names: Iterable[Named], where: str) -> Iterator[Finding]:
        names = tuple(names)
        yield from doubled(names, where)
        for name, line in names:
            if name not in self.facts.layer_types:
                near = get_close_matches(name, self.facts.layer_types, n=1)
                remedy = f"did you mean {near[0]}?" if near else f"choose from {', '.join(self.facts.layer_types)}"
                yield Finding(line, name, f"{where} names a type that is not quantized; {remedy}")

    def fusing(self, names: Iterable[Named]) -> Iterator[Finding]:
        names = tuple(names)
        yield from doubled(names, "skip_fusion_layers")
        for name, line in names:
            op_type = self.facts.nodes.get(name)
            if op_type is None:
                yield self._unknown(name, line, "skip_fusion_layers", self.facts.nodes)
            elif op_type not in self.facts.fusing_types:
                known = " or ".join(self.facts.fusing_types)
                message = f"skip_fusion_layers names it, but nothing is fused into a {op_type}, only into {known}"
                yield Finding(line, name, f"{message}: name that layer")

    def inputs(self, entries: Iterable[InputWish]) -> Iterator[Finding]:
        seen: dict[tuple[str, int], int | None] = {}
        for entry in entries:
            line, known = entry.wish.line, self.facts.inputs.get(entry.node)
            if (entry.node, entry.index) in seen:
                message = f"tensor_quantize names input {entry.index} twice; delete one of them"
                yield Finding(line, entry.node, message)
            seen[entry.node, entry.index] = line
            if known is None and entry.node in self.facts.nodes:
                types = " and ".join(self.facts.input_types)
                message = f"tensor_quantize takes inputs of {types}, not of a {self.facts.nodes[entry.node]}; delete it"
                yield Finding(line, entry.node, message)
            elif known is None:
                yield self._unknown(entry.node, line, "tensor_quantize", self.facts.inputs)
            elif not 0 <= entry.index < known.count:
                message = f"input_index is {entry.index}, but this {known.op_type} has {known.count} inputs, counted "
                yield Finding(line, entry.node, message + "from 0; correct it")


def doubled(names: Iterable[Named], where: str) -> Iterator[Finding]:
    """Names that stand in a list more than once."""
    seen: dict[str, int | None] = {}
    for name, line in names:
        if name in seen:
            first = "" if seen[name] is None else f" (first on line {seen[name]})"
            yield Finding(line, name, f"{where} names it twice{first}; delete one of them")
        seen.setdefault(name, line)
