"""What a pass is, and how passes are lined up.

A pass reads one rule from its docstring, decides node by node whether the rule fits (and says why not where a user
would ask), and changes the graph. It knows neither config nor files.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from amct_onnx.graph.model import Model
from amct_onnx.graph.parts import collection_paused

SKIPPED = "skipped on request"


@dataclass(frozen=True)
class Refusal:
    """Why something was left as it was: node, rule and remedy, for the report."""

    node: str
    op_type: str
    reason: str
    remedy: str = ""


@dataclass(frozen=True)
class PassResult:
    """What a pass did.

    Attributes:
        changed: names of the nodes it changed, in graph order.
        refusals: nodes that it was meant for but had to leave.
        merged: name of a node that took others in -> names of all it now stands for, itself first.
        withheld: names of nodes that would have taken others in, had they not been skipped.
    """

    changed: tuple[str, ...] = ()
    refusals: tuple[Refusal, ...] = ()
    merged: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    withheld: tuple[str, ...] = ()


@dataclass(frozen=True)
class RearrangeResult(PassResult):
    """What a pass did that puts nodes of its own around layers.

    Attributes:
        moved: name of a new tensor -> the source's tensor whose values it holds; in what a layer reads the last two
            axes are swapped.
        unseen: names of new nodes one of whose inputs no tensor of the source corresponds to.
    """

    moved: Mapping[str, str] = field(default_factory=dict)
    unseen: frozenset[str] = frozenset()


@dataclass(frozen=True)
class PassTiming:
    """One line of ``-v``: seconds and number of changes of one pass."""

    name: str
    seconds: float
    changed: int


class Pass(Protocol):
    """A rewrite of a whole model."""

    def run(self, model: Model) -> PassResult:
        """Apply the rule wherever it fits."""
        ...


def run_pipeline(model: Model, passes: Sequence[Pass]) -> tuple[list[PassResult], list[PassTiming]]:
    """Run `passes` in order on `model`."""
    results: list[PassResult] = []
    timings: list[PassTiming] = []
    for step in passes:
        begin = time.perf_counter()
        with collection_paused():
            result = step.run(model)
        results.append(result)
        timings.append(PassTiming(type(step).__name__, time.perf_counter() - begin, len(result.changed)))
    return results, timings
