"""What a caller of ``prune`` says of how much goes, as options."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence, Sized
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from onnx import ModelProto

from amct_onnx.analyse.allocation import OutOfReachError
from amct_onnx.analyse.cost import Shapes
from amct_onnx.analyse.pruning.channel_sensitivity import ChannelSensitivity
from amct_onnx.analyse.pruning.configurable import prune_options, retrain_facts, search_options
from amct_onnx.analyse.pruning.counts import ALIGNMENT, USUAL_ALIGNMENT
from amct_onnx.analyse.pruning.options import Importance, LayerPruning, PruneOptions, SearchGoal
from amct_onnx.api.configured import refuse_beside_config
from amct_onnx.api.given import check_share
from amct_onnx.api.prune_config import PruneConfigSource, configure_pruning, retrain_notes
from amct_onnx.config.auto_prune import AutoPruneConfig, load_auto_prune
from amct_onnx.config.retrain import Flow
from amct_onnx.errors import ArgumentError, ConfigError
from amct_onnx.rewrite.pruning import open_prunable

AutoConfigSource: TypeAlias = str | os.PathLike[str] | AutoPruneConfig


@dataclass(frozen=True, kw_only=True)
class PruneArguments:
    """How much goes, and what ranks it: the arguments of :func:`amct_onnx.prune` by their names."""

    ratio: float | None
    saving: float | None
    ascend_optimized: bool
    skip: Sequence[str]
    importance: Importance | ChannelSensitivity
    config: PruneConfigSource | None
    auto_config: AutoPruneConfig | None

    def check(self, data: Any) -> None:
        """Raise :class:`UsageError` for what does not go together."""
        amounts = {"ratio": self.ratio is not None, "saving": self.saving is not None}
        others = {"ascend_optimized": self.ascend_optimized, "skip": self.skip}
        if self.auto_config is not None:
            refuse_beside_config({**amounts, "config": self.config is not None, **others}, "auto_config")
        elif self.config is not None:
            refuse_beside_config({**amounts, **others})
        elif self.ratio is None and self.saving is None:
            raise ArgumentError(
                "give one of {ratio} (a share of each layer's channels), {saving} (of the multiply-adds), {config} and "
                "{auto_config}"
            )
        elif self.ratio is not None and self.saving is not None:
            raise ArgumentError("{ratio} and {saving} exclude each other: each says how much goes; drop one")
        for name, value in (("ratio", self.ratio), ("saving", self.saving)):
            if value is not None:
                check_share(name, value)
        if data is None and (self.saving is not None or self.auto_config is not None):
            name = "saving" if self.auto_config is None else "auto_config"
            raise ArgumentError(
                f"{{{name}}} finds from {{data}} how much of each layer goes; give {{data}}, or {{ratio}} instead"
            )

    def resolve(self, proto: ModelProto, base_dir: Path | None, shapes: Shapes) -> tuple[PruneOptions, tuple[str, ...]]:
        """The options for a model, and what a report should say of its config."""
        if self.auto_config is not None:
            return search_options(
                self.auto_config, retrain_facts(open_prunable(proto, base_dir, shapes)), self.importance
            )
        if self.config is not None:
            resolved = configure_pruning(proto, base_dir, shapes, self.config, Flow.PRUNE)
            return prune_options(resolved, self.importance), retrain_notes(resolved, channels=True)
        alignment = ALIGNMENT if self.ascend_optimized else USUAL_ALIGNMENT
        options = PruneOptions(
            default=None if self.ratio is None else LayerPruning(self.ratio, self.ascend_optimized),
            skip=dict.fromkeys(self.skip, "it is skipped on request"),
            importance=self.importance,
            search=None if self.saving is None else SearchGoal(saving=self.saving, alignment=alignment),
        )
        return options, ()

    def data_notes(self, data: Any) -> tuple[str, ...]:
        """What a report should say where the data holds fewer feeds than a config asks for."""
        asked = 0 if self.auto_config is None else self.auto_config.test_iteration
        if self.auto_config is None or not isinstance(data, Sized) or len(data) >= asked:
            return ()
        return (
            f"{self.auto_config.source}: test_iteration is {asked}, but there are {len(data)} feeds; all were used",
        )

    @property
    def files(self) -> tuple[Path, ...]:
        """The files of configs, which must not be overwritten."""
        if self.auto_config is not None:
            return self.auto_config.files
        return (Path(self.config),) if isinstance(self.config, str | os.PathLike) else ()

    @contextmanager
    def naming_the_line(self) -> Iterator[None]:
        """Let what a config asks for, and the model cannot give, be an error of the config."""
        try:
            yield
        except OutOfReachError as fault:
            if self.auto_config is None:
                raise
            most = int(100 / (1 - fault.reachable)) / 100
            raise ConfigError(
                f"{self.auto_config.source}, line {self.auto_config.line}: compress_ratio is "
                f"{self.auto_config.compress_ratio:g}, but at most {most:g} is in reach; lower it, raise "
                "max_prune_ratio, or skip fewer layers"
            ) from None


def as_auto_config(source: AutoConfigSource | None) -> AutoPruneConfig | None:
    """The config of a search, read where it is a path; raises :class:`ConfigError`."""
    return source if source is None or isinstance(source, AutoPruneConfig) else load_auto_prune(source)


def as_importance(wanted: Importance | ChannelSensitivity | str | None, data: Any) -> Importance | ChannelSensitivity:
    """How channels are ranked; raises :class:`UsageError` for what is not known, or takes data that is not there."""
    if isinstance(wanted, ChannelSensitivity):
        return wanted
    if wanted is None:
        return Importance.L2 if data is None else Importance.RECONSTRUCTION
    try:
        chosen = Importance(wanted)
    except ValueError:
        known = ", ".join(kind.value for kind in Importance)
        raise ArgumentError(f"{{importance}}: '{{value}}' is unknown; choose from {known}", value=wanted) from None
    if chosen.needs_data and data is None:
        raise ArgumentError(f"{{importance}} {chosen.value} ranks by {{data}}; give {{data}}, or choose l2 or bn_scale")
    return chosen
