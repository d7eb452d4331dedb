"""A block of settings -> the options of one layer, and where each came from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from amct_onnx.config.facts import ConfigurableLayer
from amct_onnx.config.options import (
    ActivationAlgorithm,
    ActivationOptions,
    LayerOptions,
    WeightAlgorithm,
    WeightOptions,
)
from amct_onnx.config.request import (
    ACTIVATION_ALGORITHM,
    ASYMMETRIC,
    MIGRATION_STRENGTH,
    PER_CHANNEL,
    Request,
    Setting,
    Wish,
    origin,
)

DEFAULT_ORIGIN = "default"
_SHOWN_ALWAYS = (
    "activation.algorithm",
    "activation.bits",
    "activation.symmetric",
    "weight.algorithm",
    "weight.bits",
    "weight.per_channel",
    MIGRATION_STRENGTH,
)


def layer_options(
    layer: ConfigurableLayer, wish: Wish | None, settings: Mapping[str, Setting], request: Request
) -> tuple[LayerOptions, dict[str, str]]:
    """The options of one layer and the origin of each setting.

    Args:
        layer: the layer.
        wish: the block that counts for it, None for none.
        settings: what of that block the layer can do.
        request: the whole config.
    """
    activation, symmetric_origin = activation_options(wish, settings, request, asymmetric=layer.asymmetric)
    per_channel = settings[PER_CHANNEL].value if PER_CHANNEL in settings else layer.per_channel
    weight: dict[str, Any] = {"algorithm": WeightAlgorithm.ARQ, **_of_part(settings, "weight", WeightOptions)}
    strength = settings[MIGRATION_STRENGTH].value if MIGRATION_STRENGTH in settings else None
    options = LayerOptions(
        activation=activation,
        weight=WeightOptions(**{**weight, "per_channel": per_channel}),
        migration_strength=strength,
    )
    return options, {**_origins(wish, settings), "activation.symmetric": symmetric_origin}


def activation_options(
    wish: Wish | None, settings: Mapping[str, Setting], request: Request, *, asymmetric: bool = True
) -> tuple[ActivationOptions, str]:
    """The options of one activation, and where its symmetry came from.

    Args:
        wish: the block that counts for it, None for none.
        settings: what of that block can be done.
        request: the whole config.
        asymmetric: whether it may have a zero point.
    """
    given: dict[str, Any] = {
        "algorithm": ActivationAlgorithm.IFMR,
        **_of_part(settings, "activation", ActivationOptions),
    }
    wanted, place = _asymmetric(wish, settings, request)
    if wanted and not asymmetric:
        wanted, place = False, "the layer is quantized symmetrically only"
    return ActivationOptions(**{**given, "symmetric": not wanted}), place


def _asymmetric(wish: Wish | None, settings: Mapping[str, Setting], request: Request) -> tuple[bool, str]:
    """The block's own word; that of common_config where both use one algorithm; activation_offset."""
    if wish is not None and ASYMMETRIC in settings:
        return bool(settings[ASYMMETRIC].value), wish.origin(ASYMMETRIC)
    common = request.common
    own = settings[ACTIVATION_ALGORITHM].value if ACTIVATION_ALGORITHM in settings else ActivationAlgorithm.IFMR
    if common is not None and ASYMMETRIC in common.settings and common.value(ACTIVATION_ALGORITHM) is own:
        return bool(common.value(ASYMMETRIC)), common.origin(ASYMMETRIC)
    given = request.settings.get("activation_offset")
    if given is None:
        return True, DEFAULT_ORIGIN
    return bool(given.value), origin("activation_offset", given.line)


def _of_part(settings: Mapping[str, Setting], part: str, kind: type) -> dict[str, Any]:
    """The settings that are fields of one part of the options."""
    names = [member.name for member in fields(kind)]
    return {name: settings[f"{part}.{name}"].value for name in names if f"{part}.{name}" in settings}


def _origins(wish: Wish | None, settings: Mapping[str, Setting]) -> dict[str, str]:
    origins = dict.fromkeys(_SHOWN_ALWAYS, DEFAULT_ORIGIN)
    if wish is not None:
        origins.update({name: wish.origin(name) for name in settings if name != ASYMMETRIC})
        left_out = wish.settings.keys() - settings.keys() - {ASYMMETRIC}
        origins.update({name: f"default, since not as {wish.origin(name)} asks" for name in left_out})
    return origins
