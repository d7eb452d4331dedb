"""Config files as text, and errors that say where in them."""

from __future__ import annotations

import os
from pathlib import Path

from amct_onnx.errors import ConfigError
from amct_onnx.prototext import TextError, decode, is_model_name


def read_config(path: str | os.PathLike[str]) -> str:
    """The text of a config file; raises :class:`ConfigError` where it cannot be read or is no text."""
    name = os.fspath(path)
    if is_model_name(name):
        raise ConfigError(f"{name} is called like a model, but a config is wanted here; give the config file")
    try:
        return decode(Path(path).read_bytes())
    except OSError as fault:
        raise ConfigError(f"{name} cannot be read: {fault.strerror}; give the path of a config file") from fault
    except ValueError as fault:
        raise ConfigError(f"{name!r} cannot be read: {fault}; give the path of a config file") from fault
    except TextError as fault:
        raise located(name, fault) from None


def located(source: str, fault: TextError) -> ConfigError:
    """The error for a text that is no config."""
    return ConfigError(f"{source}, line {fault.line}, column {fault.column}: {fault.message}")
