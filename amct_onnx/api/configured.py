"""A model and a config brought together."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sized
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from onnx import ModelProto

from amct_onnx.analyse.configurable import model_facts
from amct_onnx.analyse.engine import Calibration
from amct_onnx.analyse.walk import check_enough
from amct_onnx.api.source import Source, blaming_illegal_models, load_source
from amct_onnx.config import ModelFacts, QuantConfig, Request, load_request, resolve
from amct_onnx.config.retrain import RetrainConfig
from amct_onnx.errors import ArgumentError, ConfigError
from amct_onnx.rewrite import Prepared, prepare

ConfigSource: TypeAlias = str | os.PathLike[str] | Request | QuantConfig


@dataclass(frozen=True)
class Configured:
    """A model made ready as a config says, what the config's rules asked of it, and the config resolved for it."""

    prepared: Prepared
    facts: ModelFacts
    config: QuantConfig


def resolve_config(model: Source, config: ConfigSource) -> QuantConfig:
    """Resolve an AMCT config for a model.

    Args:
        model: path of an ONNX file, or a ModelProto (not changed).
        config: path of a simple config (.cfg) or a JSON config, or one read by :mod:`amct_onnx.config`.

    Raises:
        ConfigError: the config cannot be read, breaks a rule, or does not fit the model.
    """
    proto, base_dir = load_source(model)
    with blaming_illegal_models(proto, base_dir):
        return configure(proto, base_dir, config).config


def configure(proto: ModelProto, base_dir: Path | None, config: ConfigSource) -> Configured:
    """Make a model ready as a config says and resolve the config for it; see :func:`resolve_config`."""
    if isinstance(config, QuantConfig):
        prepared = prepare(proto, base_dir, do_fusion=config.do_fusion, skip_fusion=config.skip_fusion_layers)
        facts = model_facts(prepared.model)
        _check_resolved(config, facts)
        return Configured(prepared, facts, config)
    request = config if isinstance(config, Request) else load_request(config)
    names = tuple(named.name for named in request.skip_fusion_layers)
    prepared = prepare(proto, base_dir, do_fusion=request.value("do_fusion", True), skip_fusion=names)
    facts = model_facts(prepared.model)
    return Configured(prepared, facts, resolve(request, facts))


def _check_resolved(config: QuantConfig, facts: ModelFacts) -> None:
    differing = config.layers.keys() ^ facts.layers.keys()
    if differing:
        raise ConfigError(
            f"{config.source or 'the config'} was resolved for another model: only one of them has layer "
            f"'{min(differing)}'; resolve it for this model"
        )


def refuse_beside_config(given: Mapping[str, Any], config: str = "config") -> None:
    """Raise :class:`ArgumentError` if an argument is given (name -> value) that the argument `config` decides."""
    clash = next((name for name, value in given.items() if value), None)
    if clash is not None:
        raise ArgumentError(f"{{{config}}} and {{{clash}}} exclude each other: the config decides it; write it there")


def config_notes(config: QuantConfig) -> tuple[str, ...]:
    """What a report should say of a config: its warnings."""
    return tuple(f"{config.source}, {finding}" for finding in config.warnings)


def check_feeds(data: Any, config: QuantConfig | RetrainConfig) -> None:
    """Raise :class:`DataError` at once, if data that can be counted holds fewer feeds than a config asks for."""
    held = data.feeds if isinstance(data, Calibration) else len(data) if isinstance(data, Sized) else 0
    if held:
        check_enough(held, config.batch_num, config.source)


def feed_notes(data: Any, wanted: int | None) -> tuple[str, ...]:
    """What a report should say where the data holds more feeds than a config asks for."""
    if wanted is None:
        return ()
    if isinstance(data, Calibration):
        if data.feeds <= wanted:
            return ()
        return (f"batch_num is {wanted}, but the statistics were taken from {data.feeds} feeds; all of them count",)
    if isinstance(data, Sized) and len(data) > wanted:
        used = "only the first" if wanted == 1 else f"the first {wanted}"
        verb = "was" if wanted == 1 else "were"
        return (f"batch_num is {wanted}: {used} of {len(data)} feeds {verb} used to find the scales",)
    return ()
