"""What every JSON config has in common: typed members, each key once, and a finding for whatever is otherwise."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from typing import Any

from amct_onnx.config.json_keys import PRECISION_MODES, VERSION
from amct_onnx.config.json_text import Value
from amct_onnx.findings import Finding

_KINDS: Mapping[type, str] = {
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    str: "a string",
    list: "a list",
    dict: "an object",
}


class MemberReader:
    """Reads values; what is wrong with them is collected in ``findings``."""

    def __init__(self) -> None:
        self.findings: list[Finding] = []

    def fault(self, line: int, layer: str, message: str) -> None:
        """Note what is wrong."""
        self.findings.append(Finding(line, layer, message))

    def typed(self, value: Value | None, what: str, kind: type, layer: str = "") -> Any:
        """The data of a value if it is of a type; None, and a finding, if it is not."""
        if value is None:
            return None
        # In Python true is an int; in JSON it is none, and a whole number is a number.
        kinds = (int, float) if kind is float else (kind,)
        if isinstance(value.data, kinds) and (kind is bool or not isinstance(value.data, bool)):
            return value.data
        found = _KINDS.get(type(value.data), "null")
        self.fault(value.line, layer, f"{what} is {_KINDS[kind]}, not {found}; correct it")
        return None

    def members(self, value: Value, what: str, layer: str = "", known: Iterable[str] | None = None) -> dict[str, Value]:
        """The members of an object: each once, and only known ones."""
        members = self.typed(value, what, dict, layer)
        if members is None:
            return {}
        for key, line in value.doubled:
            self.fault(line, layer, f"{key} stands twice in {what}; delete one of them")
        names = tuple(known) if known is not None else tuple(members)
        for key, member in members.items():
            if key not in names:
                near = get_close_matches(key, names, n=1)
                remedy = f"did you mean {near[0]}?" if near else f"known are {', '.join(names)}"
                self.fault(member.line, layer, f"{key} is no parameter of {what}; {remedy}")
        return {key: member for key, member in members.items() if key in names}

    def check_version(self, members: Mapping[str, Value]) -> None:
        """Note a version that is not known."""
        version = self.typed(members.get("version"), "version", int)
        if version is not None and version != VERSION:
            self.fault(members["version"].line, "", f"version is {version}, but only {VERSION} is known; correct it")

    def is_fp16(self, members: Mapping[str, Value]) -> bool | None:
        """Whether ``fakequant_precision_mode`` asks for float16 scales; None where nothing is said."""
        mode = self.typed(members.get("fakequant_precision_mode"), "fakequant_precision_mode", str)
        if mode is None:
            return None
        if mode not in PRECISION_MODES:
            known = " or ".join(PRECISION_MODES)
            line = members["fakequant_precision_mode"].line
            self.fault(line, "", f'fakequant_precision_mode is "{mode}", but it is {known}; correct it')
        return bool(mode == PRECISION_MODES[1])
