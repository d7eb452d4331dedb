"""The simple config of retraining and pruning: protobuf text -> request.

A name that is broken over lines inside its quotes, as AMCT's documentation prints the examples, is joined by the reader
of protobuf text, with a warning.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator

from amct_onnx.config.cfg_file import problem_findings
from amct_onnx.config.request import Named
from amct_onnx.config.retrain.blocks import DATA, PRUNE, WEIGHT, BlockReader
from amct_onnx.config.retrain.request import RetrainRequest, Skips, Wishes
from amct_onnx.config.text_file import located, read_config
from amct_onnx.errors import ConfigError
from amct_onnx.proto.retrain_config_onnx import AMCTRetrainConfig
from amct_onnx.prototext import Block, Source, TextError, message_spec, read_text

_OF_BOTH = ("skip_layers", "skip_layer_types")
_OF_PRUNING = ("regular_prune_skip_layers", "regular_prune_skip_types")
_OF_QUANTIZATION = ("quant_skip_layers", "quant_skip_types")
_PARTS = (PRUNE, DATA, WEIGHT)
_SEARCH = re.compile(r"^\s*compress_ratio\s*:", re.MULTILINE)


def load_retrain_request(path: str | os.PathLike[str]) -> RetrainRequest:
    """Read the file of a retrain config; see :func:`parse_retrain_request`."""
    text, source = read_config(path), os.fspath(path)
    refuse_search_config(text, source)
    return parse_retrain_request(text, source=source)


def parse_retrain_request(text: str, *, source: str = "<text>") -> RetrainRequest:
    """Read the text of a retrain config.

    What is wrong with single fields becomes findings of the request, told when it meets a model.

    Raises:
        ConfigError: the text is no protobuf text format, at the first place that shows it.
    """
    if _is_json(text):
        raise ConfigError(f"{source}: this is JSON; pruning takes the simple config (.cfg), with a prune_config block")
    root = _read(text, source)
    reader = BlockReader()
    batches = root.get("batch_num")
    if batches == 0:
        reader.fault(root.line_of("batch_num"), "batch_num is 0, but it is at least 1; correct it")
    of_all = reader.wishes(root)
    types = tuple(_overrides(root, "override_layer_types", "layer_type", reader))
    layers = tuple(_overrides(root, "override_layer_configs", "layer_name", reader))
    return RetrainRequest(
        source=source,
        of_all=of_all,
        types=types,
        layers=layers,
        prune_skips=_skips(root, _OF_PRUNING),
        quant_skips=_skips(root, _OF_QUANTIZATION),
        batch_num=1 if batches is None else batches,
        force_fp16_quant=root.get("fakequant_precision_mode") == "FORCE_FP16_QUANT",
        findings=(*problem_findings(root), *reader.findings),
    )


def refuse_search_config(text: str, source: str) -> None:
    """Raise :class:`ConfigError` for a config of a search (``AutoChannelPruneConfig``), which is read elsewhere."""
    if _SEARCH.search(text.removeprefix("\ufeff")):
        raise ConfigError(
            f"{source} is a config of a search (compress_ratio); give it to `amct_onnx prune` as --auto-config "
            "(auto_config)"
        )


def is_retrain_config(text: str) -> bool:
    """Whether a text holds what only a retrain config has; what cannot be read does not."""
    if _is_json(text):
        return False
    try:
        root = read_text(Source(text.removeprefix("\ufeff")), message_spec(AMCTRetrainConfig.DESCRIPTOR))
    except TextError:
        return False
    entries = [root, *root.all("override_layer_types"), *root.all("override_layer_configs")]
    own = {*_OF_PRUNING, *_OF_QUANTIZATION, *_PARTS}
    return any(own & entry.fields.keys() for entry in entries)


def _is_json(text: str) -> bool:
    return text.removeprefix("\ufeff").lstrip().startswith(("{", "["))


def _read(text: str, source: str) -> Block:
    try:
        return read_text(Source(text.removeprefix("\ufeff")), message_spec(AMCTRetrainConfig.DESCRIPTOR))
    except TextError as fault:
        raise located(source, fault) from None


def _skips(root: Block, own: tuple[str, str]) -> Skips:
    """The lists for one purpose, with those for both before them."""
    layers, types = ((both, one) for both, one in zip(_OF_BOTH, own, strict=True))
    return Skips({field: _names(root, field) for field in layers}, {field: _names(root, field) for field in types})


def _names(root: Block, field: str) -> tuple[Named, ...]:
    found = root.fields.get(field)
    return () if found is None else tuple(map(Named, found.values, found.lines))


def _overrides(root: Block, field: str, key: str, reader: BlockReader) -> Iterator[tuple[Named, Wishes]]:
    for entry in root.all(field):
        name = entry.get(key)
        if not any(part in entry.fields for part in _PARTS):
            reader.fault(entry.line, f"{field} gives nothing for it; add {PRUNE}, or delete the block")
        wishes = reader.wishes(entry, f'{field} "{name}"')
        if name is not None:  # or the reader has said that it is missing
            yield Named(name, entry.line), wishes
