"""The rules that need a model: does the record fit it?"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from difflib import get_close_matches

from amct_onnx.record.check import as_loaded, check_record, placed
from amct_onnx.record.complaints import Complaint
from amct_onnx.record.findings import Finding, Severity, raise_errors
from amct_onnx.record.layer_rules import OFFSET_RANGES, device_complaint
from amct_onnx.record.layers import LayerRecord
from amct_onnx.record.model import LoadedRecord, Record
from amct_onnx.record.prune import PruneNode

_WEIGHT_TYPES = frozenset({"INT4", "INT6", "INT7", "INT8"})
_MOST_SUGGESTIONS = 3


@dataclass(frozen=True, kw_only=True)
class LayerFacts:
    """What a record's rules ask of a layer that can be quantized.

    ``channels_out`` and ``channels_in`` count the weight's channels (None: not known, not checked); for a recurrent
    layer ``gates`` is the number of its gates and ``channels_out`` is gates times hidden size. ``symmetric_only``
    asks for offset_d 0.
    """

    op_type: str
    channels_out: int | None = None
    channels_in: int | None = None
    per_channel_allowed: bool = True
    has_weight: bool = True
    gates: int | None = None
    symmetric_only: bool = False
    act_types: frozenset[str] = frozenset(OFFSET_RANGES)
    wts_types: frozenset[str] = _WEIGHT_TYPES


def validate_record(
    record: Record | LoadedRecord,
    layers: Mapping[str, LayerFacts | str],
    *,
    nodes: Mapping[str, int] | None = None,
    input_obstacle: Callable[[str, int], str | None] | None = None,
    source: str | None = None,
) -> tuple[Finding, ...]:
    """Check a record against a model and return the warnings.

    ``layers`` holds, by name, the facts of each layer that can be quantized, or why it cannot. ``nodes`` holds every
    node of the graph with its number of inputs; without it only the names in ``layers`` are known, and indices of
    inputs are not checked. ``input_obstacle`` says why an input of a node cannot be quantized, None when it can, and is
    asked for inputs that exist. ``source`` is what errors name, by default the file that was loaded.

    Raises :class:`amct_onnx.errors.RecordError`, one that lists everything that does not fit.
    """
    loaded = as_loaded(record)
    model = _Model(layers, nodes, input_obstacle)
    findings = [*check_record(loaded)]
    for key, layer in loaded.record.layers.items():
        findings += placed(loaded, key, model.layer(key, layer))
    for key in loaded.record.kv_cache:
        findings += placed(loaded, key, model.known(key))
    for index, prune in enumerate(loaded.record.prune):
        for role, position, node in prune.nodes():
            line = loaded.node_lines.get((index, role, position))
            findings += (Finding(line, node.name, f"{role}: {message}") for message in model.prune_node(role, node))
    raise_errors(source or loaded.source, findings)
    return tuple(findings)


class _Model:
    """The names and facts of a model, and the rules that ask for them."""

    def __init__(
        self,
        layers: Mapping[str, LayerFacts | str],
        nodes: Mapping[str, int] | None,
        input_obstacle: Callable[[str, int], str | None] | None,
    ) -> None:
        self.layers = layers
        self.input_obstacle = input_obstacle
        self.nodes = nodes
        self.names: Collection[str] = layers.keys() if nodes is None else nodes.keys() | layers.keys()
        self.suggestions_left = _MOST_SUGGESTIONS  # each one compares a name with all of the model's

    def layer(self, key: str, layer: LayerRecord) -> Iterator[Complaint]:
        """Yield what of one entry does not fit the model."""
        if layer.is_tensor_quantize:
            yield from self._tensor(key, layer)
            return
        unknown = list(self.known(key))
        yield from unknown
        if unknown or (layer.is_empty and not layer.tensor_balance_factor):
            return
        facts = self.layers.get(key, "it is of no type that can be")
        if isinstance(facts, str):
            yield Complaint(None, f"the layer cannot be quantized: {facts}; delete its entry")
            return
        yield from _balance_complaints(layer, facts)
        if not layer.is_empty:
            yield from _missing(layer, facts)
            yield from _weight_complaints(layer, facts)
            yield from _recurrent_complaints(layer, facts)
            yield from _activation_complaints(layer, facts)
            yield from device_complaint(layer, Severity.ERROR)

    def known(self, name: str) -> Iterator[Complaint]:
        """Yield a complaint if the model has no node of this name."""
        if name not in self.names:
            yield Complaint(None, f"the model has no such node; {self._remedy(name)}")

    def _remedy(self, name: str) -> str:
        node, _, index = name.rpartition(":")
        if node in self.names and index.isdecimal():
            return f'if input {index} of "{node}" is meant, add is_tensor_quantize: true'
        if self.suggestions_left > 0:
            self.suggestions_left -= 1
            near = get_close_matches(name, self.names, n=1)
            if near:
                return f'did you mean "{near[0]}"?'
        return "correct the name, or delete the entry"

    def _tensor(self, key: str, layer: LayerRecord) -> Iterator[Complaint]:
        node, _, index = key.rpartition(":")
        unknown = list(self.known(node))
        yield from (complaint._replace(field="is_tensor_quantize") for complaint in unknown)
        if not unknown and self.nodes is not None and index.isdecimal():
            yield from self._input(node, int(index), self.nodes.get(node, 0))
        for name in ("scale_d", "offset_d"):
            if getattr(layer, name) is None:
                yield Complaint(
                    None, f"{name} is missing; a quantized input gives scale_d and offset_d: calibrate again"
                )
        yield from device_complaint(layer, Severity.ERROR)

    def _input(self, node: str, index: int, count: int) -> Iterator[Complaint]:
        if index >= count:
            yield Complaint(None, f'"{node}" has {count} inputs, counted from 0; correct the index')
            return
        obstacle = None if self.input_obstacle is None else self.input_obstacle(node, index)
        if obstacle is not None:
            yield Complaint(None, f"the input cannot be quantized: {obstacle}; delete its entry")

    def prune_node(self, role: str, node: PruneNode) -> Iterator[str]:
        """Yield what of a prune node does not fit the model."""
        unknown = list(self.known(node.name))
        yield from (complaint.message for complaint in unknown)
        facts = self.layers.get(node.name)
        if unknown or role == "selective_prune" or not isinstance(facts, LayerFacts):
            return
        channels = facts.channels_out if role == "producer" else facts.channels_in
        if channels is not None and node.end is not None and node.end > channels:
            yield f"end is {node.end}, but the {facts.op_type} has {channels} channels there; correct the range"


def _missing(layer: LayerRecord, facts: LayerFacts) -> Iterator[Complaint]:
    wanted = ["scale_d", "offset_d", "scale_w", "offset_w"]
    if facts.gates is not None:
        wanted += ["scale_h", "offset_h", "scale_r", "offset_r"]
    for name in wanted:
        if getattr(layer, name) in (None, ()):
            listed = f"{', '.join(wanted[:-1])} and {wanted[-1]}"
            message = f"{name} is missing; a quantized {facts.op_type} gives {listed}: "
            if facts.has_weight or name.endswith("_d"):
                message += "finish its calibration, or delete the entry to leave it in float"
            else:
                message += "having no weight, it gives scale_w: 1.0 and offset_w: 0"
            yield Complaint(None, message)


def _weight_complaints(layer: LayerRecord, facts: LayerFacts) -> Iterator[Complaint]:
    whole = facts.gates or 1
    per_channel = facts.per_channel_allowed and facts.has_weight
    for name, scales in (("scale_w", layer.scale_w), ("scale_r", layer.scale_r if facts.gates else ())):
        length = len(scales)
        if length in (0, whole):
            continue
        if not per_channel:
            message = f"{name} has length {length}; this {facts.op_type} takes {whole}: quantize the weight as a whole"
            yield Complaint(name, message)
        elif facts.channels_out is not None and length != facts.channels_out:
            message = (
                f"{name} has length {length}; this {facts.op_type} takes {whole}, or {facts.channels_out} "
                "(one for each output channel): calibrate this model again, or take its own record"
            )
            yield Complaint(name, message)
    if facts.has_weight and layer.weight_type not in facts.wts_types:
        allowed = ", ".join(sorted(facts.wts_types))
        message = f"the weight's type is {layer.weight_type}; this {facts.op_type} takes {allowed}: correct wts_type"
        yield Complaint("wts_type", message)


def _recurrent_complaints(layer: LayerRecord, facts: LayerFacts) -> Iterator[Complaint]:
    for name in ("scale_h", "offset_h", "scale_r", "offset_r"):
        if facts.gates is None and getattr(layer, name) not in (None, ()):
            yield Complaint(name, f"{name} belongs to recurrent layers; it is ignored", Severity.WARNING)


def _activation_complaints(layer: LayerRecord, facts: LayerFacts) -> Iterator[Complaint]:
    kind = layer.activation_type
    allowed = facts.act_types if facts.has_weight else facts.act_types - {"INT4"}
    if kind not in allowed:
        message = f"the activation's type is {kind}; this {facts.op_type} takes {', '.join(sorted(allowed))}: correct "
        yield Complaint("act_type" if layer.act_type else "dst_type", message + "the type")
    if facts.symmetric_only:
        for name in ("offset_d", "offset_h"):
            if getattr(layer, name):
                message = (
                    f"{name} is {getattr(layer, name)}; this {facts.op_type} is quantized symmetrically only: write 0"
                )
                yield Complaint(name, message)


def _balance_complaints(layer: LayerRecord, facts: LayerFacts) -> Iterator[Complaint]:
    length = len(layer.tensor_balance_factor)
    if not length:
        return
    if not facts.has_weight or facts.gates is not None:
        message = f"this {facts.op_type} cannot be balanced; delete tensor_balance_factor"
        yield Complaint("tensor_balance_factor", message)
    elif facts.channels_in is not None and length != facts.channels_in:
        message = (
            f"tensor_balance_factor has length {length}; this {facts.op_type} has {facts.channels_in} input channels: "
            "balance the layer again, or delete its factors"
        )
        yield Complaint("tensor_balance_factor", message)
