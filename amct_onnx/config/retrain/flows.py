"""Which flow takes which fields of a retrain config.

AMCT's functions come in three flows, and each refuses a config that asks for what it does not do: a field that is read
and has no effect would be a surprise.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from amct_onnx.config.request import Named
from amct_onnx.config.retrain.cfg_fields import DATA, OF_PRUNING, OF_QUANTIZATION, PRUNE, WEIGHT
from amct_onnx.config.retrain.json_keys import DATA_CONFIG, PRUNE_CONFIG, WEIGHT_CONFIG
from amct_onnx.config.retrain.request import DEFAULT_DATA, DEFAULT_WEIGHT, RetrainRequest, Skips, Wishes
from amct_onnx.findings import Finding


class Flow(enum.Enum):
    """What is done with a config."""

    QUANT = "quant"
    """Layers are quantized (``create_quant_retrain_model``)."""
    PRUNE = "prune"
    """Channels or weights go (``create_prune_retrain_model``, ``prune``, ``sparsify``)."""
    COMPRESSED = "compressed"
    """Both (``create_compressed_retrain_model``, ``compress``)."""


@dataclass(frozen=True)
class _Rule:
    """What a flow refuses: parts of blocks (fields of Wishes), and lists; and why."""

    parts: tuple[str, ...] = ()
    lists: tuple[str, ...] = ()
    reason: str = ""


_COMBINED = "`amct_onnx compress` (create_compressed_retrain_model)"
_RULES: Mapping[Flow, _Rule] = {
    Flow.QUANT: _Rule(("prune",), OF_PRUNING, "layers are only quantized here"),
    Flow.PRUNE: _Rule(("data", "weight"), OF_QUANTIZATION, "nothing is quantized here"),
    Flow.COMPRESSED: _Rule(),
}
_NAMES: Mapping[str, tuple[str, str]] = {
    "prune": (PRUNE, PRUNE_CONFIG),
    "data": (DATA, DATA_CONFIG),
    "weight": (WEIGHT, WEIGHT_CONFIG),
}
"""Part of a block -> how the simple config and the JSON config call it."""


def flow_findings(request: RetrainRequest, flow: Flow) -> Iterator[Finding]:
    """Yield a finding where there are fields that a flow does not take: each with the first place where it stands."""
    rule = _RULES[flow]
    places = [(_NAMES[part][request.is_json], place) for part in rule.parts if (place := _place(request, part))]
    lists = {**request.prune_skips.layers, **request.prune_skips.types}
    lists.update({**request.quant_skips.layers, **request.quant_skips.types})
    places += [(name, Named("", lists[name][0].line)) for name in rule.lists if lists.get(name)]
    if not places:
        return
    (field, first), *others = sorted(places, key=lambda place: place[1].line or 0)
    more = "".join(f", {name} (line {place.line})" for name, place in others)
    verb, them = ("are", "them") if others else ("is", "it")
    message = f"{field}{more} {verb} not taken, since {rule.reason}; delete {them}, or let {_COMBINED} do everything"
    yield Finding(first.line, first.name, message)


def in_flow(request: RetrainRequest, flow: Flow) -> RetrainRequest:
    """A request with what a flow adds: one that only quantizes does so by defaults where nothing else is said.

    A JSON config lists the layers that are quantized.
    """
    if flow is not Flow.QUANT or request.is_json:
        return request
    of_all = request.of_all
    quantized = Wishes(data=of_all.data or DEFAULT_DATA, weight=of_all.weight or DEFAULT_WEIGHT)
    return replace(request, of_all=quantized, prune_skips=Skips())


def _place(request: RetrainRequest, part: str) -> Named | None:
    """Where a part is first given: the layer or type, and the line."""
    blocks = [(Named("", None), request.of_all), *request.types, *request.layers]
    given = [(named, asked) for named, wishes in blocks if (asked := getattr(wishes, part)) is not None]
    places = [Named(named.name, asked.line or named.line) for named, asked in given]
    return min(places, key=lambda place: place.line or 0, default=None)
