"""Files and arguments -> requests."""

from __future__ import annotations

import os
from collections.abc import Iterable

from amct_onnx.config.cfg_file import parse_cfg
from amct_onnx.config.json_file import parse_json
from amct_onnx.config.request import Named, Request, Setting
from amct_onnx.config.retrain.load import is_retrain_config, refuse_search_config
from amct_onnx.config.text_file import located, read_config
from amct_onnx.errors import ConfigError
from amct_onnx.prototext import TextError


def load_request(path: str | os.PathLike[str]) -> Request:
    """Read a config file, a simple config (.cfg) or a JSON one; see :func:`parse_request`."""
    text, name = read_config(path), os.fspath(path)
    refuse_search_config(text, name)
    if is_retrain_config(text):
        raise ConfigError(
            f"{name} is a config of pruning and training (prune_config, retrain_*), and quantizing takes a "
            "calibration config; `amct_onnx compress` does all that it says, channels, weights and INT8"
        )
    return parse_request(text, source=name)


def parse_request(text: str, *, source: str = "<text>") -> Request:
    """Read the text of a config.

    A JSON object begins with a brace, which no simple config can; a file called .json is JSON whatever it holds.
    Whatever is wrong with single fields is told when the request meets a model
    (:func:`amct_onnx.config.resolve`), together with what does not fit the model.

    Raises :class:`ConfigError` at the first place where the text is of neither form.
    """
    text = text.removeprefix("\ufeff")
    try:
        if text.lstrip().startswith(("{", "[")) or source.lower().endswith(".json"):
            return parse_json(text, source)
        return parse_cfg(text, source)
    except TextError as fault:
        raise located(source, fault) from None


def arguments_request(
    *, skip_layers: Iterable[str] = (), batch_num: int = 1, activation_offset: bool = True, source: str = "arguments"
) -> Request:
    """A request from the arguments of AMCT's ``create_quant_config``."""
    if isinstance(batch_num, bool) or not isinstance(batch_num, int):
        raise ConfigError(f"batch_num is {batch_num!r}, but it is a whole number; correct it")
    if not isinstance(activation_offset, bool):
        raise ConfigError(f"activation_offset is {activation_offset!r}, but it is True or False; correct it")
    names = [skip_layers] if isinstance(skip_layers, str) else list(skip_layers)
    for name in names:
        if not isinstance(name, str):
            raise ConfigError(f"skip_layers holds {name!r}, but it is a list of layer names; correct it")
    return Request(
        source=source,
        settings={
            "batch_num": Setting(batch_num, None, "batch_num"),
            "activation_offset": Setting(activation_offset, None, "activation_offset"),
        },
        skip_layers=tuple(Named(name, None) for name in names),
    )
