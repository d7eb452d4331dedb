"""How many channels of each group go, when so much of the whole model's cost has to."""

from __future__ import annotations

import heapq
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Offer:
    """What a group can give up.

    Attributes:
        losses: loss when one, two, ... steps of channels are gone; it grows.
        saving: cost that one step saves, in the unit of the target.
    """

    losses: NDArray[np.float64]
    saving: float


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
    useful = {name: offer for name, offer in sorted(offers.items()) if len(offer.losses) and offer.saving > 0}
    heap = [(_price(offer, 0), name) for name, offer in useful.items()]
    heapq.heapify(heap)
    while heap and saved < target:
        _, name = heapq.heappop(heap)
        offer = offers[name]
        taken[name] += 1
        saved += offer.saving
        if taken[name] < len(offer.losses):
            heapq.heappush(heap, (_price(offer, taken[name]), name))
    return taken


def _price(offer: Offer, step: int) -> float:
    before = offer.losses[step - 1] if step else 0.0
    return float(offer.losses[step] - before) / offer.saving
