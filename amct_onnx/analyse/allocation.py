"""How far each part of a model goes, when so much of the whole model's cost has to."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from amct_onnx.errors import ArgumentError

_RAISES = (*(1.0 + 0.04 * step for step in range(26)), np.inf)
"""Factors by which the target is raised until the steps together save enough."""
_ROUNDING = 1e-9
"""What sums of shares may lack."""


class OutOfReachError(ArgumentError):
    """So much cannot be saved.

    Attributes:
        reachable: the share of the multiply-adds that can, rounded down to 0.001.
    """

    def __init__(self, saving: float, reachable: float) -> None:
        self.reachable = int(reachable * 1000 + _ROUNDING) / 1000
        super().__init__(
            "{saving} is {value:g}, but at most {reachable:g} of the multiply-adds can go; ask for less",
            value=saving,
            reachable=self.reachable,
        )


@dataclass(frozen=True)
class Offer:
    """What a group of layers can give up, step by step.

    Attributes:
        losses: loss when one, two, ... steps are taken; it grows.
        savings: cost that is saved then, in the unit of the target; it grows.
    """

    losses: NDArray[np.float64]
    savings: NDArray[np.float64]


Steps: TypeAlias = Mapping[str, int]
"""Group -> number of steps taken from it."""


def allocate_share(
    offers: Mapping[str, Offer],
    saving: float,
    total: float,
    saved_by: Callable[[Steps], float],
    *,
    at_once: bool = False,
) -> dict[str, int]:
    """Steps taken from each group that save a share of the whole, at the least loss.

    What is offered is raised until they do, since groups may save less together than each alone.

    Args:
        offers: group -> what it can give up.
        saving: the share.
        total: what the whole costs.
        saved_by: what steps of each group save together, in the unit of `total`; also without any.
        at_once: every group has one step.

    Returns:
        Group -> number of steps; none where nothing saves anything.

    Raises:
        OutOfReachError: so much cannot be saved.
    """
    wanted = saving * total * (1 - _ROUNDING)
    steps: dict[str, int] = {}
    already = saved = saved_by(steps)
    for factor in _RAISES:
        if saved >= wanted:
            break
        steps = (allocate_whole if at_once else allocate)(offers, factor * (wanted - already))
        saved = saved_by(steps)
    if saved < wanted and (saved > 0 or any(steps.values())):
        raise OutOfReachError(saving, saved / total)
    return give_back(offers, steps, lambda fewer: saved_by(fewer) >= wanted)


def allocate(offers: Mapping[str, Offer], target: float) -> dict[str, int]:
    """Steps taken from each group, so that `target` is saved at the least loss, one step after the other.

    Always the step is taken that loses least for what it saves; a convex loss makes that the best choice there is.
    Savings of groups that share layers are taken as independent, which overstates them a little.

    Args:
        offers: group -> what it can give up.
        target: how much to save.

    Returns:
        Group -> number of steps; as much as there is when the target is out of reach.
    """
    taken = dict.fromkeys(offers, 0)
    saved = 0.0
    useful = {name: offer for name, offer in sorted(offers.items()) if len(offer.losses) and offer.savings[0] > 0}
    heap = [(_price(offer, 0), name) for name, offer in useful.items()]
    heapq.heapify(heap)
    while heap and saved < target:
        _, name = heapq.heappop(heap)
        offer = offers[name]
        saved += _step(offer.savings, taken[name])
        taken[name] += 1
        if taken[name] < len(offer.losses):
            heapq.heappush(heap, (_price(offer, taken[name]), name))
    return taken


def allocate_whole(offers: Mapping[str, Offer], target: float) -> dict[str, int]:
    """The same of groups that go at once or not at all, where the last one taken may save far more than is needed.

    Groups are gone through by what they lose for what they save. One that saves all that is missing makes a choice with
    those taken before, and is passed over; of these choices the one of least loss is taken. It loses at most twice the
    least that is possible (Csirik, Frenk, Labbe and Zhang 1991, heuristics for the 0-1 min-knapsack problem).

    Args:
        offers: group -> what it can give up, in one step.
        target: how much to save.
    """
    useful = [name for name, offer in offers.items() if offer.savings[0] > 0]
    taken: set[str] = set()
    best, least = set(useful), np.inf
    saved = lost = 0.0
    for name in sorted(useful, key=lambda name: (_price(offers[name], 0), name)):
        loss, saving = float(offers[name].losses[0]), float(offers[name].savings[0])
        if saved + saving < target:
            taken.add(name)
            saved, lost = saved + saving, lost + loss
        elif lost + loss < least:
            best, least = {*taken, name}, lost + loss
    return {name: int(name in best) for name in offers}


def give_back(offers: Mapping[str, Offer], taken: Steps, is_enough: Callable[[Steps], bool]) -> dict[str, int]:
    """Steps without those that are not needed after all: the last ones taken are large, and make up for some before.

    Args:
        offers: group -> what it can give up.
        taken: steps taken from each group.
        is_enough: whether so many steps of each group save what they must.

    Returns:
        Group -> number of steps; the dearest are tried first.
    """
    steps = dict(taken)
    for name in sorted(steps, key=lambda name: (-_last(offers[name].losses, steps[name]), name)):
        while steps[name] and is_enough(fewer := {**steps, name: steps[name] - 1}):
            steps = fewer
    return steps


def _last(values: NDArray[np.float64], taken: int) -> float:
    return _step(values, taken - 1) if taken else 0.0


def _price(offer: Offer, step: int) -> float:
    return _step(offer.losses, step) / _step(offer.savings, step)


def _step(values: NDArray[np.float64], step: int) -> float:
    return float(values[step] - (values[step - 1] if step else 0.0))
