"""How many channels of each group go, when so much of the whole model's cost has to."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Offer:
    """What a group can give up, step by step.

    Attributes:
        losses: loss when the channels of one, two, ... steps are gone; it grows.
        savings: cost that is saved then, in the unit of the target; it grows.
    """

    losses: NDArray[np.float64]
    savings: NDArray[np.float64]


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


def give_back(
    offers: Mapping[str, Offer], taken: Mapping[str, int], is_enough: Callable[[Mapping[str, int]], bool]
) -> dict[str, int]:
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
