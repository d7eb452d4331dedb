"""Where the input channels of a layer lie in its weight: groups of four are taken along them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from amct_onnx.graph.channels import Channels, plain
from amct_onnx.graph.op_table import spec_of
from amct_onnx.graph.parts import Node
from amct_onnx.graph.weights import Array


@dataclass(frozen=True)
class InputAxis:
    """A weight seen as [groups, input channels of a group, others].

    Attributes:
        channels: where the input channels lie.
        shape: shape of the weight.
    """

    channels: Channels
    shape: tuple[int, ...]

    @property
    def per_group(self) -> int:
        """Input channels of one group."""
        return self.channels.view[self.channels.axes[-1]]

    def seen(self, weight: Array) -> Array:
        """The weight as [groups, input channels of a group, others]."""
        first = self._moved(weight)
        return first.reshape(-1, self.per_group, first.size // max(1, self.channels.count))

    def stored(self, seen: Array) -> Array:
        """Inverse of :meth:`seen`."""
        shape = self._moved(np.empty(self.shape, np.bool_)).shape
        back = np.moveaxis(seen.reshape(shape), range(len(self.channels.axes)), self.channels.axes)
        return np.ascontiguousarray(back.reshape(self.shape))

    def _moved(self, weight: Array) -> Array:
        return np.moveaxis(weight.reshape(self.channels.view), self.channels.axes, range(len(self.channels.axes)))


def input_axis(node: Node, index: int, shape: tuple[int, ...]) -> InputAxis:
    """Where the input channels of a layer lie.

    Args:
        node: a Conv, ConvTranspose, Gemm or MatMul.
        index: which of its inputs is the weight; a MatMul may have it first.
        shape: shape of the weight.
    """
    group = int(node.attrs.get("group", 1)) if node.op == "ConvTranspose" else 1
    if group > 1:
        return InputAxis(Channels((group, shape[0] // group, *shape[1:]), (0, 1)), shape)
    if node.op == "MatMul" and index == 0:
        return InputAxis(plain(len(shape) - 1, shape), shape)
    return InputAxis(spec_of(node).in_channels(node, shape), shape)
