"""The simple config: protobuf text -> request."""

from __future__ import annotations

from collections.abc import Iterator

from amct_onnx.config.bounds import setting_findings
from amct_onnx.config.cfg_blocks import calibration_settings, plain
from amct_onnx.config.request import InputWish, Named, Request, Setting, Wish
from amct_onnx.findings import Finding, Severity
from amct_onnx.proto.calibration_config_onnx import AMCTConfig
from amct_onnx.prototext import Block, Source, message_spec, read_text

_GLOBALS = ("batch_num", "activation_offset", "joint_quant", "do_fusion")
_NUQ_SETTINGS = {"num_steps": "nuq.num_steps", "num_of_iteration": "nuq.num_of_iteration"}


def parse_cfg(text: str, source: str) -> Request:
    """Read the text of a simple config.

    What is wrong with single fields becomes findings of the request. Raises
    :class:`amct_onnx.prototext.TextError` where the text is no protobuf text format.
    """
    root = read_text(Source(text), message_spec(AMCTConfig.DESCRIPTOR))
    inputs, input_findings = _inputs(root)
    return Request(
        source=source,
        settings=_globals(root),
        skip_fusion_layers=_names(root, "skip_fusion_layers"),
        skip_layers=_names(root, "skip_layers"),
        skip_types=_names(root, "skip_layer_types"),
        common=_wish(root, "common_config"),
        kernels=_legacy_wish(root, "conv_calibration_config"),
        matrices=_legacy_wish(root, "fc_calibration_config"),
        types=_overrides(root, "override_layer_types", "layer_type"),
        layers=_overrides(root, "override_layer_configs", "layer_name"),
        inputs=inputs,
        findings=(*problem_findings(root), *input_findings, *_notices(root)),
    )


def _globals(root: Block) -> dict[str, Setting]:
    settings = {name: Setting(root.get(name), root.line_of(name), name) for name in _GLOBALS if name in root.fields}
    if root.get("fakequant_precision_mode") == "FORCE_FP16_QUANT":
        line = root.line_of("fakequant_precision_mode")
        settings["force_fp16_quant"] = Setting(True, line, "fakequant_precision_mode")
    return settings


def _names(root: Block, field: str) -> tuple[Named, ...]:
    found = root.fields.get(field)
    return () if found is None else tuple(map(Named, found.values, found.lines))


def _wish(root: Block, field: str) -> Wish | None:
    block: Block | None = root.get(field)
    if block is None:
        return None
    return Wish(where=field, line=block.line, settings=calibration_settings(block), strict=False)


def _legacy_wish(root: Block, field: str) -> Wish | None:
    """A block of the oldest releases, which counts where nothing newer stands."""
    return None if _newer(root) else _wish(root, field)


def _newer(root: Block) -> str | None:
    return next((name for name in ("common_config", "override_layer_types") if name in root.fields), None)


def _overrides(root: Block, field: str, key: str) -> tuple[tuple[Named, Wish], ...]:
    found = []
    for entry in root.all(field):
        name, block = entry.get(key), entry.get("calibration_config")
        if name is not None and block is not None:  # or the reader has said that they are missing
            wish = Wish(where=f'{field} "{name}"', line=entry.line, settings=calibration_settings(block))
            found.append((Named(name, entry.line), wish))
    return tuple(found)


def _inputs(root: Block) -> tuple[tuple[InputWish, ...], list[Finding]]:
    found, findings = [], []
    for entry in root.all("tensor_quantize"):
        name, index = entry.get("layer_name"), entry.get("input_index")
        for key, value in (("layer_name", name), ("input_index", index)):
            if value is None:
                message = f"{key} is missing; tensor_quantize needs layer_name and input_index: add it"
                findings.append(Finding(entry.line, name or "", message))
        if name is not None and index is not None:
            where = f'tensor_quantize "{name}:{index}"'
            wish = Wish(where=where, line=entry.line, settings=calibration_settings(entry))
            found.append(InputWish(node=name, index=index, wish=wish))
    return tuple(found), findings


def problem_findings(root: Block) -> Iterator[Finding]:
    """What the reader found wrong in a text."""
    for problem in root.all_problems():
        severity = Severity.WARNING if problem.warning else Severity.ERROR
        yield Finding(problem.line, "", problem.message, severity)


def _notices(root: Block) -> Iterator[Finding]:
    newer = _newer(root)
    for name in ("conv_calibration_config", "fc_calibration_config"):
        if newer is not None and name in root.fields:
            message = f"{name} is not used where {newer} is given; delete one of them"
            yield Finding(root.line_of(name), "", message, Severity.WARNING)
    nuq: Block | None = root.get("nuq_config")
    if nuq is None:
        return
    message = "nuq_config is accepted, but layers are quantized uniformly: no hardware gains from it; delete it"
    yield Finding(nuq.line, "", message, Severity.WARNING)
    inner: Block | None = nuq.get("nuq_quantize")
    if inner is not None:
        yield from setting_findings(plain(inner, _NUQ_SETTINGS))
