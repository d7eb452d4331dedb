"""What a retrain config asks for, before any model is known."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Generic, TypeVar

from amct_onnx.config.layer_options import DEFAULT_ORIGIN
from amct_onnx.config.request import Named, origin
from amct_onnx.config.retrain.options import DataQuant, Pruning, WeightQuant
from amct_onnx.findings import Finding

T = TypeVar("T")


@dataclass(frozen=True)
class Asked(Generic[T]):
    """One part of a block: what it chooses, the field that holds it, and its line."""

    options: T
    where: str
    line: int | None

    @property
    def origin(self) -> str:
        """Where it stands, in words."""
        return origin(self.where, self.line)


@dataclass(frozen=True, kw_only=True)
class Wishes:
    """What is asked of all layers, of a type, or of one layer; a part that is not given is None.

    Attributes:
        prune: how it is pruned.
        data: how its input is quantized.
        weight: how its weights are quantized.
    """

    prune: Asked[Pruning] | None = None
    data: Asked[DataQuant] | None = None
    weight: Asked[WeightQuant] | None = None


DEFAULT_DATA = Asked(DataQuant(), DEFAULT_ORIGIN, None)
DEFAULT_WEIGHT = Asked(WeightQuant(algorithm="arq_retrain"), DEFAULT_ORIGIN, None)
"""How a layer is quantized of which nothing else is said."""


@dataclass(frozen=True)
class Skips:
    """Names in the lists that leave something out; the field that holds each list -> its names."""

    layers: Mapping[str, tuple[Named, ...]] = field(default_factory=dict)
    types: Mapping[str, tuple[Named, ...]] = field(default_factory=dict)

    @cached_property
    def layer_origins(self) -> dict[str, str]:
        """Name of a layer -> where it is first left out."""
        return _origins(self.layers)

    @cached_property
    def type_origins(self) -> dict[str, str]:
        """Name of a type -> where it is first left out."""
        return _origins(self.types)


def _origins(lists: Mapping[str, tuple[Named, ...]]) -> dict[str, str]:
    found: dict[str, str] = {}
    for where, names in lists.items():
        for name, line in names:
            found.setdefault(name, origin(where, line))
    return found


@dataclass(frozen=True, kw_only=True)
class RetrainRequest:
    """Everything one retrain config asks for.

    Attributes:
        source: what errors name.
        of_all: the global blocks.
        types: blocks for layers of a type.
        layers: blocks for single layers.
        prune_skips, quant_skips: what is not pruned, and not quantized; lists for both stand in both.
        batch_num: number of batches.
        force_fp16_quant: whether scales are rounded to float16.
        findings: what reading found.
        is_json: whether it lists layers by name, each with a block of its own.
    """

    source: str
    of_all: Wishes = Wishes()
    types: tuple[tuple[Named, Wishes], ...] = ()
    layers: tuple[tuple[Named, Wishes], ...] = ()
    prune_skips: Skips = Skips()
    quant_skips: Skips = Skips()
    batch_num: int = 1
    force_fp16_quant: bool = False
    findings: tuple[Finding, ...] = ()
    is_json: bool = False
