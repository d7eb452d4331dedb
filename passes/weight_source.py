"""Where the values of a weight come from, one transposition back."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from amct_onnx.graph.model import constant_array
from amct_onnx.graph.op_table import is_standard, resolve_constant
from amct_onnx.graph.parts import Constant, Node, Tensor
from amct_onnx.graph.weights import Array

_FLOATS = tuple(np.dtype(kind) for kind in (np.float16, np.float32, np.float64))


@dataclass(frozen=True)
class WeightSource:
    """A float constant as a node's input sees it.

    Attributes:
        constant: the constant.
        transpose: the Transpose between the two, None when there is none.
    """

    constant: Constant
    transpose: Node | None = None

    @property
    def shape(self) -> list[int]:
        """Its shape behind the Transpose."""
        shape = [int(size) for size in self.constant.shape]
        return shape if self.transpose is None else [shape[axis] for axis in self.perm]

    def values(self) -> Array:
        """Its values behind the Transpose, read afresh."""
        array = constant_array(self.constant)
        return array if self.transpose is None else np.transpose(array, self.perm)

    @property
    def perm(self) -> list[int]:
        """The permutation of the Transpose; backwards when there is none."""
        backwards = list(range(len(self.constant.shape)))[::-1]
        return backwards if self.transpose is None else [int(a) for a in self.transpose.attrs.get("perm", backwards)]


def weight_source(tensor: Tensor) -> WeightSource | None:
    """The float constant behind a tensor, perhaps behind a Transpose that later becomes part of it; else None."""
    transpose: Node | None = None
    constant = resolve_constant(tensor)
    producer = tensor.inputs[0] if tensor.inputs else None
    if constant is None and producer is not None and producer.op == "Transpose" and is_standard(producer):
        transpose, constant = producer, resolve_constant(producer.inputs[0])
    if constant is None or constant.dtype not in _FLOATS:
        return None
    return WeightSource(constant, transpose)
