"""A retrain config in JSON: text -> request. Every layer has a block of its own; none is for a type or for all."""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches

from amct_onnx.config.json_text import Value, read_json
from amct_onnx.config.request import Named
from amct_onnx.config.retrain.bounds import out_of_bounds
from amct_onnx.config.retrain.json_blocks import JsonBlockReader
from amct_onnx.config.retrain.json_keys import (
    DATA_CONFIG,
    LAYER_KEYS,
    PRUNE_CONFIG,
    PRUNE_ENABLE,
    RETRAIN_ENABLE,
    ROOT_KEYS,
    WEIGHT_CONFIG,
)
from amct_onnx.config.retrain.options import Pruning
from amct_onnx.config.retrain.request import DEFAULT_DATA, DEFAULT_WEIGHT, Asked, RetrainRequest, Skips, Wishes
from amct_onnx.errors import ConfigError
from amct_onnx.findings import Finding, Severity
from amct_onnx.prototext import Source, TextError


def parse_json(text: str, source: str) -> RetrainRequest:
    """Read the text of a retrain config in JSON.

    What is wrong with single keys becomes findings of the request.

    Raises:
        TextError: the text is no JSON.
        ConfigError: it is a calibration config.
    """
    root = read_json(Source(text))
    if any("quant_enable" in layer.data for layer in _layers(root)):
        raise ConfigError(f"{source} is a calibration config (quant_enable); `amct_onnx quantize` takes it as --config")
    return _Reader().request(root, source)


def is_retrain_json(text: str) -> bool:
    """Whether some layer of a JSON text has a key that only retrain configs have."""
    try:
        root = read_json(Source(text))
    except TextError:
        return False
    return any(layer.data.keys() & set(LAYER_KEYS) for layer in _layers(root))


def _layers(root: Value) -> list[Value]:
    """The objects that a file holds."""
    members = root.data.values() if isinstance(root.data, dict) else ()
    return [member for member in members if isinstance(member.data, dict)]


class _Reader(JsonBlockReader):
    """Reads layers; remembers which are left out by name."""

    def __init__(self) -> None:
        super().__init__()
        self.disabled: dict[str, list[Named]] = {RETRAIN_ENABLE: [], PRUNE_ENABLE: []}

    def request(self, root: Value, source: str) -> RetrainRequest:
        members = self.members(root, "the file")
        self.check_version(members)
        batches = self.typed(members.get("batch_num"), "batch_num", int)
        if message := out_of_bounds("batch_num", batches):
            self.fault(members["batch_num"].line, "", message)
        layers = []
        for name, value in members.items():
            if name in ROOT_KEYS:
                continue
            if isinstance(value.data, dict):
                layers.append((Named(name, value.line), self._layer(name, value)))
            else:
                self.fault(value.line, "", f"{name} is neither a parameter nor a layer with its object; {_hint(name)}")
        quant, prune = (
            Skips({key: tuple(self.disabled[key])} if self.disabled[key] else {})
            for key in (RETRAIN_ENABLE, PRUNE_ENABLE)
        )
        return RetrainRequest(
            source=source,
            layers=tuple(layers),
            prune_skips=prune,
            quant_skips=quant,
            batch_num=1 if batches is None else batches,
            force_fp16_quant=bool(self.is_fp16(members)),
            findings=tuple(self.findings),
            is_json=True,
        )

    def _layer(self, name: str, value: Value) -> Wishes:
        members = self.members(value, "a layer", name, LAYER_KEYS)
        where = f'layer "{name}"'
        data = weight = prune = None
        # What a disabled layer holds is read, too, so that its faults are told.
        if DATA_CONFIG in members:
            data = Asked(self.data(members[DATA_CONFIG], name), where, members[DATA_CONFIG].line)
        if WEIGHT_CONFIG in members:
            weight = Asked(self.weight(members[WEIGHT_CONFIG], name), where, members[WEIGHT_CONFIG].line)
        if PRUNE_CONFIG in members:
            prune = Asked(self.pruning(members[PRUNE_CONFIG], name), where, members[PRUNE_CONFIG].line)
        if not self._is_enabled(RETRAIN_ENABLE, members, name, value.line):
            data = weight = None
        else:
            data, weight = data or DEFAULT_DATA, weight or DEFAULT_WEIGHT
        return Wishes(prune=self._pruned(members, name, value.line, prune), data=data, weight=weight)

    def _pruned(
        self, members: Mapping[str, Value], name: str, line: int, prune: Asked[Pruning] | None
    ) -> Asked[Pruning] | None:
        if not self._is_enabled(PRUNE_ENABLE, members, name, line):
            return None
        if prune is None:
            self.fault(members[PRUNE_ENABLE].line, name, f"{PRUNE_ENABLE} is true without {PRUNE_CONFIG}; add it")
        return prune

    def _is_enabled(self, key: str, members: Mapping[str, Value], name: str, line: int) -> bool:
        """Whether a layer is quantized, or pruned; with a warning where blocks are given for it that do not count."""
        enabled = self.typed(members.get(key), key, bool, name)
        if enabled is False:
            self.disabled[key].append(Named(name, members[key].line))
        own = (DATA_CONFIG, WEIGHT_CONFIG) if key == RETRAIN_ENABLE else (PRUNE_CONFIG,)
        if key not in members and any(other in members for other in own):
            rest, does = ("stays float", "quantize") if key == RETRAIN_ENABLE else ("is not pruned", "prune")
            message = f'{key} is missing, so the layer {rest}; add "{key}":true to {does} it'
            self.findings.append(Finding(line, name, message, Severity.WARNING))
        return bool(enabled)


def _hint(name: str) -> str:
    near = get_close_matches(name, ROOT_KEYS, n=1)
    return f"did you mean {near[0]}?" if near else f"parameters are {', '.join(ROOT_KEYS)}"
