"""What a config asks for, before any model is known: the same for the simple config, the JSON config and arguments."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from amct_onnx.findings import Finding

# Names of settings, the same in every form. The first word says which part of LayerOptions one belongs to.
ACTIVATION_ALGORITHM = "activation.algorithm"
ACTIVATION_BITS = "activation.bits"
ASYMMETRIC = "activation.asymmetric"
WEIGHT_ALGORITHM = "weight.algorithm"
WEIGHT_BITS = "weight.bits"
PER_CHANNEL = "weight.per_channel"
MIGRATION_STRENGTH = "migration_strength"

ADA = "ada_quantize"
NUQ = "nuq_quantize"


class Setting(NamedTuple):
    """One value as the text gives it: ``key`` is what the text calls it.

    ``stands_for`` names an algorithm that is accepted, but for which another one stands in.
    """

    value: Any
    line: int | None
    key: str
    stands_for: str = ""


class Named(NamedTuple):
    """A name in a list, and its line."""

    name: str
    line: int | None


@dataclass(frozen=True, kw_only=True)
class Wish:
    """One block of settings, for one layer, a type of layers, or all of them.

    Attributes:
        where: the field that holds the block.
        line: where it begins.
        settings: what it gives, by the name of the setting.
        strict: whether what a layer cannot do is refused; otherwise it is left out with a warning.
    """

    where: str
    line: int | None
    settings: Mapping[str, Setting] = field(default_factory=dict)
    strict: bool = True

    def value(self, name: str, default: Any = None) -> Any:
        """The value of a setting, or ``default`` if the block does not give it."""
        setting = self.settings.get(name)
        return default if setting is None else setting.value

    def origin(self, name: str) -> str:
        """Where a setting stands, in words."""
        setting = self.settings[name]
        place = origin(self.where, setting.line)
        return f"{place} ({setting.stands_for} stands there)" if setting.stands_for else place


@dataclass(frozen=True, kw_only=True)
class InputWish:
    """One entry of ``tensor_quantize``."""

    node: str
    index: int
    wish: Wish


@dataclass(frozen=True, kw_only=True)
class Request:
    """Everything one config asks for.

    Attributes:
        source: what errors name.
        settings: global settings that are given, by name: batch_num, activation_offset, joint_quant, do_fusion,
            force_fp16_quant.
        skip_fusion_layers, skip_layers, skip_types: the lists of these names.
        common: for all layers.
        kernels, matrices: for all layers with and without a kernel (the oldest releases).
        types: for layers of one operator.
        layers: for single layers.
        inputs: the inputs to quantize besides.
        listed: the layers that are quantized, if the config lists them; else None.
        findings: what reading found.
    """

    source: str
    settings: Mapping[str, Setting] = field(default_factory=dict)
    skip_fusion_layers: tuple[Named, ...] = ()
    skip_layers: tuple[Named, ...] = ()
    skip_types: tuple[Named, ...] = ()
    common: Wish | None = None
    kernels: Wish | None = None
    matrices: Wish | None = None
    types: tuple[tuple[Named, Wish], ...] = ()
    layers: tuple[tuple[Named, Wish], ...] = ()
    inputs: tuple[InputWish, ...] = ()
    listed: tuple[Named, ...] | None = None
    findings: tuple[Finding, ...] = ()

    def value(self, name: str, default: Any) -> Any:
        """The value of a global setting, or ``default`` if it is not given."""
        setting = self.settings.get(name)
        return default if setting is None else setting.value

    def wishes(self) -> Iterator[Wish]:
        """Every block, in the order of precedence from the bottom up."""
        yield from (wish for wish in (self.common, self.kernels, self.matrices) if wish is not None)
        yield from (wish for _, wish in self.types)
        yield from (wish for _, wish in self.layers)
        yield from (entry.wish for entry in self.inputs)


def origin(where: str, line: int | None) -> str:
    """A place in words."""
    return where if line is None else f"{where}, line {line}"
