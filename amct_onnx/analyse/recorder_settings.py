"""What a calibration model carries for the recorder that watches its runs, as JSON."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from amct_onnx.analyse.algorithms import Bounds
from amct_onnx.config import ActivationAlgorithm, ActivationOptions


@dataclass(frozen=True)
class WatchedRange:
    """A layer whose activation scale is wanted.

    Attributes:
        layer: its name.
        key: what the observer shows its data input as.
        options: how the range is chosen.
        bounds: range that the tensor's producer can emit.
        is_state: whether it is a recurrent layer's hidden state, whose scale has fields of its own.
    """

    layer: str
    key: str
    options: ActivationOptions
    bounds: Bounds
    is_state: bool = False


@dataclass(frozen=True)
class WatchedChannels:
    """A layer whose balance factors are wanted.

    Attributes:
        layer: its name.
        key: what the observer shows its data input as.
        strength: migration strength.
        weight_maxima: largest absolute weight of each input channel.
    """

    layer: str
    key: str
    strength: float
    weight_maxima: tuple[float, ...]


@dataclass(frozen=True)
class RecorderSettings:
    """Everything that turns what observers show into a record.

    Attributes:
        record: path of the record file; empty where the statistics are taken from memory.
        batch_num: number of runs.
        ranges: layers whose activation scales go into it.
        channels: layers whose balance factors go into it.
        force_fp16: round activation scales to float16 precision.
    """

    record: str
    batch_num: int
    ranges: tuple[WatchedRange, ...] = ()
    channels: tuple[WatchedChannels, ...] = ()
    force_fp16: bool = field(default=False)

    def to_json(self) -> str:
        """As text; floats in full."""
        return json.dumps(asdict(self), default=lambda value: value.value, separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str) -> RecorderSettings:
        """Inverse of :meth:`to_json`."""
        data = json.loads(text)
        return cls(
            record=data["record"],
            batch_num=data["batch_num"],
            ranges=tuple(_range(item) for item in data["ranges"]),
            channels=tuple(
                WatchedChannels(item["layer"], item["key"], item["strength"], tuple(item["weight_maxima"]))
                for item in data["channels"]
            ),
            force_fp16=data["force_fp16"],
        )

    def identity(self, source_sha256: str) -> str:
        """A name for the recorder of one model; the same settings for the same model give the same."""
        return hashlib.sha256(f"{source_sha256}\n{self.to_json()}".encode()).hexdigest()[:16]


def _range(item: Mapping[str, Any]) -> WatchedRange:
    options = dict(item["options"])
    options["algorithm"] = ActivationAlgorithm(options["algorithm"])
    return WatchedRange(
        item["layer"], item["key"], ActivationOptions(**options), Bounds(**item["bounds"]), item["is_state"]
    )
