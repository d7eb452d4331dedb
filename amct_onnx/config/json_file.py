"""The JSON config: text -> request."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from typing import Any

from amct_onnx.config.json_keys import (
    ACTIVATION_ALGORITHMS,
    ACTIVATION_KEYS,
    LAYER_KEYS,
    OWNERS,
    PRECISION_MODES,
    ROOT_KEYS,
    TENSOR_KEYS,
    VERSION,
    WEIGHT_ALGORITHMS,
    WEIGHT_KEYS,
    Key,
)
from amct_onnx.config.json_text import Value, read_json
from amct_onnx.config.options import ActivationAlgorithm, WeightAlgorithm
from amct_onnx.config.request import (
    ACTIVATION_ALGORITHM,
    ADA,
    MIGRATION_STRENGTH,
    NUQ,
    WEIGHT_ALGORITHM,
    InputWish,
    Named,
    Request,
    Setting,
    Wish,
)
from amct_onnx.findings import Finding, Severity
from amct_onnx.prototext import Source

_GLOBALS: Mapping[str, type] = {"batch_num": int, "activation_offset": bool, "joint_quant": bool, "do_fusion": bool}
_KINDS: Mapping[type, str] = {
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    str: "a string",
    list: "a list",
    dict: "an object",
}


def parse_json(text: str, source: str) -> Request:
    """Read the text of a JSON config.

    What is wrong with single keys becomes findings of the request. Raises
    :class:`amct_onnx.prototext.TextError` where the text is no JSON.
    """
    return _Reader().request(read_json(Source(text)), source)


class _Reader:
    """Collects what is wrong on the way."""

    def __init__(self) -> None:
        self.findings: list[Finding] = []

    def request(self, root: Value, source: str) -> Request:
        members = self._object(root, "the file")
        layers = {key: value for key, value in members.items() if key not in ROOT_KEYS}
        settings = self._globals(members)
        wishes, enabled = [], []
        for name, value in layers.items():
            if not isinstance(value.data, dict):
                self._fault(value.line, "", f"{name} is neither a parameter nor a layer with its object; {_hint(name)}")
                continue
            wish, is_enabled = self._layer(name, value)
            wishes.append((Named(name, value.line), wish))
            enabled += [Named(name, value.line)] if is_enabled else []
        return Request(
            source=source,
            settings=settings,
            skip_fusion_layers=self._names(members.get("skip_fusion_layers"), "skip_fusion_layers"),
            layers=tuple(wishes),
            inputs=self._inputs(members.get("tensor_quantize")),
            listed=tuple(enabled),
            findings=tuple(self.findings),
        )

    def _globals(self, members: Mapping[str, Value]) -> dict[str, Setting]:
        version = self._typed(members.get("version"), "version", int)
        if version is not None and version != VERSION:
            self._fault(members["version"].line, "", f"version is {version}, but only {VERSION} is known; correct it")
        settings = {}
        for name, kind in _GLOBALS.items():
            found = self._typed(members.get(name), name, kind)
            if found is not None:
                settings[name] = Setting(found, members[name].line, name)
        mode = self._typed(members.get("fakequant_precision_mode"), "fakequant_precision_mode", str)
        if mode is not None:
            line = members["fakequant_precision_mode"].line
            if mode not in PRECISION_MODES:
                known = " or ".join(PRECISION_MODES)
                self._fault(line, "", f'fakequant_precision_mode is "{mode}", but it is {known}; correct it')
            settings["force_fp16_quant"] = Setting(mode == PRECISION_MODES[1], line, "fakequant_precision_mode")
        return settings

    def _names(self, value: Value | None, key: str) -> tuple[Named, ...]:
        entries = self._typed(value, key, list) or []
        names = [(self._typed(entry, f"an entry of {key}", str), entry.line) for entry in entries]
        return tuple(Named(name, line) for name, line in names if name is not None)

    def _layer(self, name: str, value: Value) -> tuple[Wish, bool]:
        members = self._object(value, "a layer", name, LAYER_KEYS)
        enabled = self._typed(members.get("quant_enable"), "quant_enable", bool, name)
        if "quant_enable" not in members:
            message = 'quant_enable is missing, so the layer stays float; add "quant_enable":true to quantize it'
            self.findings.append(Finding(value.line, name, message, Severity.WARNING))
        settings = {
            **self._algorithm(members, "activation_quant_params", name),
            **self._algorithm(members, "weight_quant_params", name),
        }
        strength = self._typed(members.get("dmq_balancer_param"), "dmq_balancer_param", float, name)
        if strength is not None:
            line = members["dmq_balancer_param"].line
            settings[MIGRATION_STRENGTH] = Setting(float(strength), line, "dmq_balancer_param")
        # What a disabled layer could not do does not matter.
        return Wish(where=f'layer "{name}"', line=value.line, settings=settings, strict=bool(enabled)), bool(enabled)

    def _algorithm(self, members: Mapping[str, Value], key: str, layer: str) -> dict[str, Setting]:
        """The settings of activation_quant_params or weight_quant_params."""
        if key not in members:
            return {}
        is_weight = key == "weight_quant_params"
        known: Mapping[str, Key] = WEIGHT_KEYS if is_weight else ACTIVATION_KEYS
        algorithms: Mapping[str, ActivationAlgorithm | WeightAlgorithm] = (
            WEIGHT_ALGORITHMS if is_weight else ACTIVATION_ALGORITHMS
        )
        name_key, default = ("wts_algo", "arq_quantize") if is_weight else ("act_algo", "ifmr")
        inner = self._object(members[key], key, layer, (*known, name_key))
        chosen = self._typed(inner.get(name_key), name_key, str, layer)
        settings: dict[str, Setting] = {}
        if chosen is not None and chosen not in algorithms:
            known_names = ", ".join(algorithms)
            message = f'{name_key} is "{chosen}", but it is one of {known_names}; correct it'
            self._fault(inner[name_key].line, layer, message)
        elif chosen is not None:
            setting = Setting(
                algorithms[chosen], inner[name_key].line, name_key, chosen if chosen in (ADA, NUQ) else ""
            )
            settings[WEIGHT_ALGORITHM if is_weight else ACTIVATION_ALGORITHM] = setting
        for name, value in inner.items():
            owner = OWNERS.get(name)
            if owner is not None and owner != (chosen or default):
                message = f"{name} belongs to {owner}, but {name_key} is {chosen or default}; delete one of them"
                self._fault(value.line, layer, message)
            elif name in known:
                settings.update(self._settings(known[name], name, value, layer))
        return settings

    def _settings(self, key: Key, name: str, value: Value, layer: str) -> dict[str, Setting]:
        found = self._typed(value, name, key.kind, layer)
        if found is None:
            return {}
        if key.kind is not list:
            number = float(found) if key.kind is float else found
            return {key.settings[0]: Setting(number, value.line, name)}
        numbers = [self._typed(entry, f"an entry of {name}", float, layer) for entry in found]
        if len(numbers) != len(key.settings):
            message = f"{name} has {len(numbers)} entries, but it is a start and an end; correct it"
            self._fault(value.line, layer, message)
            return {}
        pairs = zip(key.settings, numbers, strict=True)
        return {setting: Setting(float(number), value.line, name) for setting, number in pairs if number is not None}

    def _inputs(self, value: Value | None) -> tuple[InputWish, ...]:
        found = []
        for entry in self._typed(value, "tensor_quantize", list) or []:
            members = self._object(entry, "an entry of tensor_quantize", "", TENSOR_KEYS)
            node = self._typed(members.get("layer_name"), "layer_name", str)
            index = self._typed(members.get("input_index"), "input_index", int)
            for key in TENSOR_KEYS[:2]:
                if key not in members and isinstance(entry.data, dict):
                    message = f"{key} is missing; tensor_quantize needs layer_name and input_index: add it"
                    self._fault(entry.line, node or "", message)
            if node is not None and index is not None:
                where = f'tensor_quantize "{node}:{index}"'
                settings = self._algorithm(members, "activation_quant_params", node)
                found.append(
                    InputWish(node=node, index=index, wish=Wish(where=where, line=entry.line, settings=settings))
                )
        return tuple(found)

    def _object(self, value: Value, what: str, layer: str = "", known: Iterable[str] | None = None) -> dict[str, Value]:
        """The members of an object: each once, and only known ones."""
        members = self._typed(value, what, dict, layer)
        if members is None:
            return {}
        for key, line in value.doubled:
            self._fault(line, layer, f"{key} stands twice in {what}; delete one of them")
        names = tuple(known) if known is not None else tuple(members)
        for key, member in members.items():
            if key not in names:
                near = get_close_matches(key, names, n=1)
                remedy = f"did you mean {near[0]}?" if near else f"known are {', '.join(names)}"
                self._fault(member.line, layer, f"{key} is no parameter of {what}; {remedy}")
        return {key: member for key, member in members.items() if key in names}

    def _typed(self, value: Value | None, what: str, kind: type, layer: str = "") -> Any:
        """The data of a value if it is of a type; None, and a finding, if it is not."""
        if value is None:
            return None
        # In Python true is an int; in JSON it is none, and a whole number is a number.
        kinds = (int, float) if kind is float else (kind,)
        if isinstance(value.data, kinds) and (kind is bool or not isinstance(value.data, bool)):
            return value.data
        found = _KINDS.get(type(value.data), "null")
        self._fault(value.line, layer, f"{what} is {_KINDS[kind]}, not {found}; correct it")
        return None

    def _fault(self, line: int, layer: str, message: str) -> None:
        self.findings.append(Finding(line, layer, message))


def _hint(name: str) -> str:
    near = get_close_matches(name, ROOT_KEYS, n=1)
    return f"did you mean {near[0]}?" if near else f"parameters are {', '.join(ROOT_KEYS)}"
