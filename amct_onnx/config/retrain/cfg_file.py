"""The simple config of retraining and pruning: protobuf text -> request.

A name that is broken over lines inside its quotes, as AMCT's documentation prints the examples, is joined by the reader
of protobuf text, with a warning.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from amct_onnx.config.cfg_file import problem_findings
from amct_onnx.config.request import Named
from amct_onnx.config.retrain.blocks import BlockReader
from amct_onnx.config.retrain.cfg_fields import OF_BOTH, OF_PRUNING, OF_QUANTIZATION, PARTS, PRUNE
from amct_onnx.config.retrain.request import RetrainRequest, Skips, Wishes
from amct_onnx.proto.retrain_config_onnx import AMCTRetrainConfig
from amct_onnx.prototext import Block, Source, TextError, message_spec, read_text


def parse_cfg(text: str, source: str) -> RetrainRequest:
    """Read the text of a simple config.

    What is wrong with single fields becomes findings of the request. Raises
    :class:`amct_onnx.prototext.TextError` where the text is no protobuf text format.
    """
    root = _read(text)
    reader = BlockReader()
    batches = root.get("batch_num")
    reader.check_bounds(root, "batch_num")
    of_all = reader.wishes(root)
    types = tuple(_overrides(root, "override_layer_types", "layer_type", reader))
    layers = tuple(_overrides(root, "override_layer_configs", "layer_name", reader))
    return RetrainRequest(
        source=source,
        of_all=of_all,
        types=types,
        layers=layers,
        prune_skips=_skips(root, OF_PRUNING),
        quant_skips=_skips(root, OF_QUANTIZATION),
        batch_num=1 if batches is None else batches,
        force_fp16_quant=root.get("fakequant_precision_mode") == "FORCE_FP16_QUANT",
        findings=(*problem_findings(root), *reader.findings),
    )


def is_retrain_cfg(text: str) -> bool:
    """Whether a text holds what only a retrain config has, or where it cannot be read its words."""
    own = {*OF_PRUNING, *OF_QUANTIZATION, *PARTS}
    try:
        root = _read(text)
    except TextError:
        return not own.isdisjoint(re.findall(r"\w+", text))
    entries = [root, *root.all("override_layer_types"), *root.all("override_layer_configs")]
    return any(own & entry.fields.keys() for entry in entries)


def _read(text: str) -> Block:
    return read_text(Source(text), message_spec(AMCTRetrainConfig.DESCRIPTOR))


def _skips(root: Block, own: tuple[str, str]) -> Skips:
    """The lists for one purpose, with those for both before them."""
    layers, types = ((both, one) for both, one in zip(OF_BOTH, own, strict=True))
    return Skips({field: _names(root, field) for field in layers}, {field: _names(root, field) for field in types})


def _names(root: Block, field: str) -> tuple[Named, ...]:
    found = root.fields.get(field)
    return () if found is None else tuple(map(Named, found.values, found.lines))


def _overrides(root: Block, field: str, key: str, reader: BlockReader) -> Iterator[tuple[Named, Wishes]]:
    for entry in root.all(field):
        name = entry.get(key)
        if not any(part in entry.fields for part in PARTS):
            reader.fault(entry.line, f"{field} gives nothing for it; add {PRUNE}, or delete the block")
        wishes = reader.wishes(entry, f'{field} "{name}"')
        if name is not None:  # or the reader has said that it is missing
            yield Named(name, entry.line), wishes
