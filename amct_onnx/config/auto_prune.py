"""AMCT's simple config of the search for prune ratios (``AutoChannelPruneConfig``)."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from amct_onnx.config.cfg_file import problem_findings
from amct_onnx.config.retrain import FilterPruning, RetrainRequest, is_retrain_config, parse_retrain_request
from amct_onnx.config.shorten import shortest
from amct_onnx.config.text_file import located, read_config
from amct_onnx.errors import ConfigError
from amct_onnx.findings import Finding, raise_findings
from amct_onnx.proto.retrain_config_onnx import AutoChannelPruneConfig
from amct_onnx.prototext import Block, Source, TextError, message_spec, read_text


@dataclass(frozen=True, kw_only=True)
class AutoPruneConfig:
    """What one config asks for.

    Attributes:
        compress_ratio: cost before over cost after, above 1.
        ascend_optimized: whether a multiple of 16 channels stays.
        max_prune_ratio: share of a layer's channels that may go at most, above 0 and at most 1.
        test_iteration: number of feeds that losses are taken from.
        overrides: layers that the search leaves alone, because they are skipped or have a ratio of their own.
        source: the file.
        line: where compress_ratio stands.
        warnings: what reading found.
    """

    compress_ratio: float
    ascend_optimized: bool = True
    max_prune_ratio: float = 1.0
    test_iteration: int = 1
    overrides: RetrainRequest | None = None
    source: str = "<text>"
    line: int | None = None
    warnings: tuple[Finding, ...] = ()

    @property
    def saving(self) -> float:
        """Share of the cost that goes."""
        return 1 - 1 / self.compress_ratio

    @property
    def files(self) -> tuple[Path, ...]:
        """The file and the one of its overrides."""
        others = () if self.overrides is None else (self.overrides.source,)
        return tuple(map(Path, (self.source, *others)))


def load_auto_prune(path: str | os.PathLike[str]) -> AutoPruneConfig:
    """Read a file; see :func:`parse_auto_prune`."""
    return parse_auto_prune(read_config(path), source=os.fspath(path))


def parse_auto_prune(text: str, *, source: str = "<text>") -> AutoPruneConfig:
    """Read the text of a config, and the file of overrides that it names.

    Raises:
        ConfigError: one that lists everything that is wrong with one of them.
    """
    if is_retrain_config(text):
        raise ConfigError(
            f"{source} is a config of pruning and training (prune_config, retrain_*), not of a search; "
            "`amct_onnx prune` takes it as --config"
        )
    try:
        root = _read(text)
    except TextError as fault:
        raise located(source, fault) from None
    findings = [*problem_findings(root), *_bounds(root)]
    raise_findings(ConfigError, source, findings)
    overrides = None if root.get("override_prune_cfg") is None else _overrides(root, source)
    aligned, most, feeds = (root.get(name) for name in ("ascend_optimized", "max_prune_ratio", "test_iteration"))
    return AutoPruneConfig(
        compress_ratio=shortest(root.get("compress_ratio")),
        ascend_optimized=True if aligned is None else aligned,
        max_prune_ratio=1.0 if most is None else shortest(most),
        test_iteration=1 if feeds is None else feeds,
        overrides=overrides,
        source=source,
        line=root.line_of("compress_ratio"),
        warnings=tuple(findings),
    )


def is_auto_prune(text: str) -> bool:
    """Whether a text holds what only the config of a search has; what cannot be read does not."""
    try:
        return bool(_read(text).fields)
    except TextError:
        return False


def _read(text: str) -> Block:
    return read_text(Source(text.removeprefix("\ufeff")), message_spec(AutoChannelPruneConfig.DESCRIPTOR))


def _bounds(root: Block) -> Iterator[Finding]:
    ratio, most, feeds = (root.get(name) for name in ("compress_ratio", "max_prune_ratio", "test_iteration"))
    if ratio is not None and not 1 < ratio < float("inf"):
        message = f"compress_ratio is {ratio:g}, but it is a number above 1: cost before over cost after; correct it"
        yield Finding(root.line_of("compress_ratio"), "", message)
    if most is not None and not 0 < most <= 1:
        message = f"max_prune_ratio is {most:g}, but it lies above 0 and is at most 1; correct it"
        yield Finding(root.line_of("max_prune_ratio"), "", message)
    if feeds is not None and feeds < 1:
        message = f"test_iteration is {feeds}, but it is at least 1; correct it"
        yield Finding(root.line_of("test_iteration"), "", message)


def _overrides(root: Block, source: str) -> RetrainRequest:
    path = root.get("override_prune_cfg")
    try:
        text = read_config(path)
    except ConfigError as fault:
        raise ConfigError(f"{source}, line {root.line_of('override_prune_cfg')}: override_prune_cfg: {fault}") from None
    request = parse_retrain_request(text, source=path)
    raise_findings(ConfigError, path, [*request.findings, *_others(request)])
    return request


def _others(request: RetrainRequest) -> Iterator[Finding]:
    """What is neither a skip nor a ratio of a layer's own."""
    rule = "an override_prune_cfg only skips layers and overrides their filter_pruner; delete it"
    blocks = [("", request.of_all), *((named.name, wishes) for named, wishes in (*request.types, *request.layers))]
    for name, wishes in blocks:
        for part in (wishes.prune, wishes.data, wishes.weight):
            is_own_ratio = part is not None and bool(name) and isinstance(part.options, FilterPruning)
            if part is not None and not is_own_ratio:
                yield Finding(part.line, name, f"{type(part.options).__name__} stands here, but {rule}")
    for field, names in {**request.quant_skips.layers, **request.quant_skips.types}.items():
        if field.startswith("quant_") and names:
            yield Finding(names[0].line, "", f"{field} stands here, but {rule}")
    if request.batch_num != 1 or request.force_fp16_quant:
        yield Finding(None, "", f"batch_num or fakequant_precision_mode stands there, but {rule}")
