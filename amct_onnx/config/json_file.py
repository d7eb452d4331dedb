"""The JSON config: text -> request."""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches

from amct_onnx.config.json_keys import (
    ACTIVATION_ALGORITHMS,
    ACTIVATION_KEYS,
    LAYER_KEYS,
    OWNERS,
    ROOT_KEYS,
    TENSOR_KEYS,
    WEIGHT_ALGORITHMS,
    WEIGHT_KEYS,
    Key,
)
from amct_onnx.config.json_members import MemberReader
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


def parse_json(text: str, source: str) -> Request:
    """Read the text of a JSON config.

    What is wrong with single keys becomes findings of the request. Raises
    :class:`amct_onnx.prototext.TextError` where the text is no JSON.
    """
    return _Reader().request(read_json(Source(text)), source)


class _Reader(MemberReader):
    """Reads the keys that this config has."""

    def request(self, root: Value, source: str) -> Request:
        members = self.members(root, "the file")
        layers = {key: value for key, value in members.items() if key not in ROOT_KEYS}
        settings = self._globals(members)
        wishes, enabled = [], []
        for name, value in layers.items():
            if not isinstance(value.data, dict):
                self.fault(value.line, "", f"{name} is neither a parameter nor a layer with its object; {_hint(name)}")
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
        self.check_version(members)
        settings = {}
        for name, kind in _GLOBALS.items():
            found = self.typed(members.get(name), name, kind)
            if found is not None:
                settings[name] = Setting(found, members[name].line, name)
        is_fp16 = self.is_fp16(members)
        if is_fp16 is not None:
            line = members["fakequant_precision_mode"].line
            settings["force_fp16_quant"] = Setting(is_fp16, line, "fakequant_precision_mode")
        return settings

    def _names(self, value: Value | None, key: str) -> tuple[Named, ...]:
        entries = self.typed(value, key, list) or []
        names = [(self.typed(entry, f"an entry of {key}", str), entry.line) for entry in entries]
        return tuple(Named(name, line) for name, line in names if name is not None)

    def _layer(self, name: str, value: Value) -> tuple[Wish, bool]:
        members = self.members(value, "a layer", name, LAYER_KEYS)
        enabled = self.typed(members.get("quant_enable"), "quant_enable", bool, name)
        if "quant_enable" not in members:
            message = 'quant_enable is missing, so the layer stays float; add "quant_enable":true to quantize it'
            self.findings.append(Finding(value.line, name, message, Severity.WARNING))
        settings = {
            **self._algorithm(members, "activation_quant_params", name),
            **self._algorithm(members, "weight_quant_params", name),
        }
        strength = self.typed(members.get("dmq_balancer_param"), "dmq_balancer_param", float, name)
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
        inner = self.members(members[key], key, layer, (*known, name_key))
        chosen = self.typed(inner.get(name_key), name_key, str, layer)
        settings: dict[str, Setting] = {}
        if chosen is not None and chosen not in algorithms:
            known_names = ", ".join(algorithms)
            message = f'{name_key} is "{chosen}", but it is one of {known_names}; correct it'
            self.fault(inner[name_key].line, layer, message)
        elif chosen is not None:
            setting = Setting(
                algorithms[chosen], inner[name_key].line, name_key, chosen if chosen in (ADA, NUQ) else ""
            )
            settings[WEIGHT_ALGORITHM if is_weight else ACTIVATION_ALGORITHM] = setting
        for name, value in inner.items():
            owner = OWNERS.get(name)
            if owner is not None and owner != (chosen or default):
                message = f"{name} belongs to {owner}, but {name_key} is {chosen or default}; delete one of them"
                self.fault(value.line, layer, message)
            elif name in known:
                settings.update(self._settings(known[name], name, value, layer))
        return settings

    def _settings(self, key: Key, name: str, value: Value, layer: str) -> dict[str, Setting]:
        found = self.typed(value, name, key.kind, layer)
        if found is None:
            return {}
        if key.kind is not list:
            number = float(found) if key.kind is float else found
            return {key.settings[0]: Setting(number, value.line, name)}
        numbers = [self.typed(entry, f"an entry of {name}", float, layer) for entry in found]
        if len(numbers) != len(key.settings):
            message = f"{name} has {len(numbers)} entries, but it is a start and an end; correct it"
            self.fault(value.line, layer, message)
            return {}
        pairs = zip(key.settings, numbers, strict=True)
        return {setting: Setting(float(number), value.line, name) for setting, number in pairs if number is not None}

    def _inputs(self, value: Value | None) -> tuple[InputWish, ...]:
        found = []
        for entry in self.typed(value, "tensor_quantize", list) or []:
            members = self.members(entry, "an entry of tensor_quantize", "", TENSOR_KEYS)
            node = self.typed(members.get("layer_name"), "layer_name", str)
            index = self.typed(members.get("input_index"), "input_index", int)
            for key in TENSOR_KEYS[:2]:
                if key not in members and isinstance(entry.data, dict):
                    message = f"{key} is missing; tensor_quantize needs layer_name and input_index: add it"
                    self.fault(entry.line, node or "", message)
            if node is not None and index is not None:
                where = f'tensor_quantize "{node}:{index}"'
                settings = self._algorithm(members, "activation_quant_params", node)
                found.append(
                    InputWish(node=node, index=index, wish=Wish(where=where, line=entry.line, settings=settings))
                )
        return tuple(found)


def _hint(name: str) -> str:
    near = get_close_matches(name, ROOT_KEYS, n=1)
    return f"did you mean {near[0]}?" if near else f"parameters are {', '.join(ROOT_KEYS)}"
