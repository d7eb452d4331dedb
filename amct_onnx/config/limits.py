"""What a layer cannot do."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from amct_onnx.config.bounds import in_bounds
from amct_onnx.config.facts import ConfigurableLayer
from amct_onnx.config.request import (
    ACTIVATION_BITS,
    ADA,
    ASYMMETRIC,
    MIGRATION_STRENGTH,
    PER_CHANNEL,
    WEIGHT_ALGORITHM,
    WEIGHT_BITS,
    Setting,
    Wish,
)

_Check = Callable[[ConfigurableLayer, Setting], str | None]


@dataclass(frozen=True)
class Limit:
    """A setting that a layer cannot take: why, and what it gets instead."""

    name: str
    setting: Setting
    reason: str
    instead: str


def limits(layer: ConfigurableLayer, wish: Wish) -> Iterator[Limit]:
    """Yield every setting of a block that a layer cannot take."""
    for name, (check, instead) in _CHECKS.items():
        setting = wish.settings.get(name)
        if setting is None or not in_bounds(name, setting.value):
            continue
        reason = check(layer, setting)
        if reason is not None:
            yield Limit(name, setting, reason, instead)


def without(settings: Mapping[str, Setting], limit: Limit) -> dict[str, Setting]:
    """The settings of a block after one of them was left out."""
    # An algorithm takes its parameters along.
    parts = ("weight.", "ada.") if limit.name == WEIGHT_ALGORITHM else (limit.name,)
    return {name: setting for name, setting in settings.items() if not name.startswith(parts)}


def _shape(layer: ConfigurableLayer) -> str:
    return layer.op_type if layer.kernel_rank is None else f"{layer.kernel_rank}-D {layer.op_type}"


def _widths(widths: frozenset[int]) -> str:
    *most, last = map(str, sorted(widths))
    return f"{', '.join(most)} or {last} bits" if most else f"{last} bits"


def _activation_bits(layer: ConfigurableLayer, setting: Setting) -> str | None:
    if setting.value in layer.activation_bits:
        return None
    return f"activations of a {_shape(layer)} take {_widths(layer.activation_bits)}"


def _asymmetric(layer: ConfigurableLayer, setting: Setting) -> str | None:
    if layer.asymmetric or not setting.value:
        return None
    return f"a {_shape(layer)} is quantized symmetrically only"


def _weight_bits(layer: ConfigurableLayer, setting: Setting) -> str | None:
    if setting.value not in layer.weight_bits:
        return f"weights of a {_shape(layer)} take {_widths(layer.weight_bits)}"
    if setting.value == 4 and ((layer.channels_in or 0) % 2 or layer.group != 1):
        return "4-bit weights need an even number of input channels and a single group"
    return None


def _per_channel(layer: ConfigurableLayer, setting: Setting) -> str | None:
    if layer.per_channel or not setting.value:
        return None
    return f"a {_shape(layer)} has one scale for all its weights"


def _learned(layer: ConfigurableLayer, setting: Setting) -> str | None:
    if layer.learned_rounding or setting.stands_for != ADA:
        return None
    return f"the rounding of a {_shape(layer)} is not learned"


def _balance(layer: ConfigurableLayer, _setting: Setting) -> str | None:
    return None if layer.balance else f"a {_shape(layer)} cannot be balanced"


_CHECKS: Mapping[str, tuple[_Check, str]] = {
    ACTIVATION_BITS: (_activation_bits, "8 bits"),
    ASYMMETRIC: (_asymmetric, "no zero point"),
    WEIGHT_ALGORITHM: (_learned, "arq_quantize"),
    WEIGHT_BITS: (_weight_bits, "8 bits"),
    PER_CHANNEL: (_per_channel, "one scale"),
    MIGRATION_STRENGTH: (_balance, "no balancing"),
}


def shown(value: Any) -> str:
    """A value as a config writes it."""
    return str(value).lower() if isinstance(value, bool) else str(value)
