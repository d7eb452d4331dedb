"""Files and texts of retrain configs -> requests."""

from __future__ import annotations

import os
import re

from amct_onnx.config.retrain.cfg_file import is_retrain_cfg, parse_cfg
from amct_onnx.config.retrain.json_file import is_retrain_json, parse_json
from amct_onnx.config.retrain.request import RetrainRequest
from amct_onnx.config.text_file import located, read_config
from amct_onnx.errors import ConfigError
from amct_onnx.prototext import TextError

_SEARCH = re.compile(r"^\s*compress_ratio\s*:", re.MULTILINE)


def load_retrain_request(path: str | os.PathLike[str]) -> RetrainRequest:
    """Read the file of a retrain config; see :func:`parse_retrain_request`."""
    text, source = read_config(path), os.fspath(path)
    refuse_search_config(text, source)
    return parse_retrain_request(text, source=source)


def parse_retrain_request(text: str, *, source: str = "<text>") -> RetrainRequest:
    """Read the text of a retrain config, a simple config (.cfg) or a JSON one.

    A JSON object begins with a brace, which no simple config can; a file called .json is JSON whatever it holds. What
    is wrong with single fields becomes findings of the request, told when it meets a model.

    Raises:
        ConfigError: the text is of neither form, at the first place that shows it; or a calibration config.
    """
    text = text.removeprefix("\ufeff")
    try:
        if _is_json(text) or source.lower().endswith(".json"):
            return parse_json(text, source)
        return parse_cfg(text, source)
    except TextError as fault:
        raise located(source, fault) from None


def refuse_search_config(text: str, source: str) -> None:
    """Raise :class:`ConfigError` for a config of a search (``AutoChannelPruneConfig``), which is read elsewhere."""
    if _SEARCH.search(text.removeprefix("\ufeff")):
        raise ConfigError(
            f"{source} is a config of a search (compress_ratio); give it to `amct_onnx prune` as --auto-config "
            "(auto_config)"
        )


def is_retrain_config(text: str) -> bool:
    """Whether a text holds what only a retrain config has; JSON that cannot be read does not."""
    text = text.removeprefix("\ufeff")
    return is_retrain_json(text) if _is_json(text) else is_retrain_cfg(text)


def _is_json(text: str) -> bool:
    return text.lstrip().startswith(("{", "["))
