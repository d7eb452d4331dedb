"""A user's own measure of what channels are worth."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from amct_onnx.analyse.feeds import Feed
from amct_onnx.errors import UsageError


@dataclass(frozen=True, eq=False)
class ChannelGroup:
    """Layers whose channels go together.

    Attributes:
        layers: layer -> for each of its output channels the unit that it goes with: int64 [output channels].
        units: how many units there are: a unit is what goes by itself.
    """

    layers: Mapping[str, NDArray[np.int64]]
    units: int


class ChannelSensitivity(ABC):
    """What a model loses with its channels, told by a class of your own.

    The search adds up the losses of what goes, over all layers, and takes next what loses least for the multiply-adds
    that it saves; so losses of different layers must have one unit.
    """

    @abstractmethod
    def losses(self, group: ChannelGroup, feeds: Sequence[Feed]) -> NDArray[np.float64]:
        """What is lost with each unit.

        Args:
            group: the layers, by their names in the model.
            feeds: sample data, input -> array; none where no data was given.

        Returns:
            Finite numbers from 0 up: [units].
        """


def checked_losses(sensitivity: ChannelSensitivity, group: ChannelGroup, feeds: Sequence[Feed]) -> NDArray[np.float64]:
    """The losses of a group; raises :class:`UsageError` where they break the rules above."""
    where = f"{type(sensitivity).__name__}.losses of '{next(iter(group.layers))}'"
    try:
        found = np.asarray(sensitivity.losses(group, feeds), np.float64)
    except (TypeError, ValueError) as error:
        raise UsageError(f"{where}: {error}; return one number for each of its {group.units} units") from error
    if found.shape != (group.units,):
        raise UsageError(f"{where}: shape {list(found.shape)}; return one number for each of its {group.units} units")
    if not (np.isfinite(found).all() and (found >= 0).all()):
        raise UsageError(f"{where}: a loss is negative or not finite; return numbers from 0 up")
    return found
