"""``auto_channel_prune_search``.

AMCT documents it for its PyTorch front end. Here an ONNX file, or a ModelProto, stands in place of a module.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from onnx import ModelProto

from amct_onnx.analyse.feed_files import find_feeds
from amct_onnx.analyse.feed_source import FeedSource
from amct_onnx.analyse.pruning.channel_sensitivity import ChannelSensitivity
from amct_onnx.analyse.pruning.options import Importance
from amct_onnx.analyse.segments import inputs_alone
from amct_onnx.api.amct_log import amct_log
from amct_onnx.api.drop_in.files import announce, check_paths
from amct_onnx.api.prune import prune
from amct_onnx.api.prune_result import PruneReport
from amct_onnx.api.source import Source, load_source, source_files
from amct_onnx.config.auto_prune import load_auto_prune
from amct_onnx.errors import UsageError
from amct_onnx.graph.files import replacing
from amct_onnx.runtime import input_specs, open_session

_TAYLOR = "TaylorLossSensitivity"
_GREEDY = "GreedySearch"


def auto_channel_prune_search(
    model: Source,
    config: str,
    input_data: Any,
    output_cfg: str,
    sensitivity: str | ChannelSensitivity = _TAYLOR,
    search_alg: str = _GREEDY,
) -> None:
    """Find how much of each layer goes so that a model costs so much less, and write a config that prunes as much.

    Args:
        model: path of an ONNX file, or a ModelProto (not changed).
        config: path of a simple config (``AutoChannelPruneConfig``).
        input_data: list of (data, label) pairs or of feeds, or a folder of ``.npz`` files; labels are not looked at.
        output_cfg: where the prune config goes; a file of that name is replaced.
        sensitivity: ``TaylorLossSensitivity``, or an object that tells what channels are worth.
        search_alg: ``GreedySearch``.

    Raises:
        ConfigError: the config breaks a rule, does not fit the model, or asks for more than can go.
        AmctError: see :mod:`amct_onnx.errors`.
    """
    function = "auto_channel_prune_search"
    with amct_log() as log:
        check_paths(function, config=config, output_cfg=output_cfg)
        if input_data is None:
            raise UsageError(f"{function}: input_data is None, but losses are taken from data; give a list of feeds")
        importance = _importance(function, sensitivity, search_alg)
        wanted = load_auto_prune(config)
        proto, base_dir = load_source(model)
        feeds = find_feeds(Path(input_data)) if isinstance(input_data, str | os.PathLike) else input_data
        files = feeds.files if isinstance(feeds, FeedSource) else ()
        announce(log, [output_cfg], [*source_files(model, proto, base_dir), *wanted.files, *files])
        if isinstance(feeds, list | tuple):
            feeds = _without_labels(function, feeds, proto, base_dir, log)
        result = prune(model, feeds, auto_config=wanted, importance=importance, recover=False, trial=False)
        for note in result.report.notes:
            log.warning("%s", note)
        with replacing(Path(output_cfg)) as temporary:
            temporary.write_bytes(result.config_text().encode())
        log.info("[%s]: %s, saved in %s", function, _summary(result.report, wanted.compress_ratio), output_cfg)


def _importance(
    function: str, sensitivity: str | ChannelSensitivity, search_alg: str
) -> Importance | ChannelSensitivity:
    if search_alg != _GREEDY:
        raise UsageError(f"{function}: search_alg is {search_alg!r}; there is {_GREEDY} alone")
    if isinstance(sensitivity, ChannelSensitivity):
        return sensitivity
    if sensitivity != _TAYLOR:
        raise UsageError(
            f"{function}: sensitivity is {sensitivity!r}; give '{_TAYLOR}' or an object of a class derived from "
            "amct_onnx.ChannelSensitivity"
        )
    return Importance.TAYLOR


def _without_labels(
    function: str, items: list[Any] | tuple[Any, ...], proto: ModelProto, base_dir: Path | None, log: logging.Logger
) -> list[Any]:
    """Feeds without the label beside each; a pair of arrays is a feed where the model has two inputs."""
    inputs = len(input_specs(open_session(proto, base_dir=base_dir, part=inputs_alone(proto))))
    feeds: list[Any] = []
    for item in items:
        is_pair = isinstance(item, tuple | list) and len(item) == 2
        has_label = is_pair and (inputs == 1 or isinstance(item[0], Mapping | tuple | list))
        feeds.append(item[0] if has_label else item)
    if any(feed is not item for feed, item in zip(feeds, items, strict=True)):
        log.info("[%s]: labels are not needed; those in input_data are ignored", function)
    return feeds


def _summary(report: PruneReport, asked: float) -> str:
    """How much less the model computes; with one number of bits everywhere that is the ratio of bit complexity."""
    before, after = report.before.multiply_adds, report.after.multiply_adds
    layers = sum(len(group.layers) for group in report.groups if group.removed)
    return (
        f"{layers} layers to prune, bit complexity (multiply-adds times bits, which are the same everywhere) "
        f"{before / after:.3f} times less, {asked:g} asked for"
    )
