"""Tensors that hold nothing but zeros, whatever is fed."""

from __future__ import annotations

from amct_onnx.graph.model import constant_array
from amct_onnx.graph.op_table import is_standard, resolve_constant
from amct_onnx.graph.parts import Constant, Tensor

_MOVES = frozenset(
    {"Cast", "Expand", "Gather", "Identity", "Reshape", "Slice", "Squeeze", "Tile", "Transpose", "Unsqueeze"}
)
"""Operators whose results hold values of their first input alone."""


def is_zero(tensor: Tensor) -> bool:
    """Whether every value of a float tensor is known to be zero."""
    while resolve_constant(tensor) is None:
        producer = tensor.inputs[0] if tensor.inputs else None
        if producer is None or not is_standard(producer):
            return False
        if producer.op == "ConstantOfShape":
            value = producer.attrs.get("value")
            return value is None or (isinstance(value, Constant) and not constant_array(value).any())
        if producer.op not in _MOVES:
            return False
        tensor = producer.inputs[0]
    constant = resolve_constant(tensor)
    return constant is not None and not constant_array(constant).any()
