"""What QuantizeLinear and DequantizeLinear nodes say of themselves."""

from __future__ import annotations

import numpy as np

from amct_onnx.graph.model import constant_array
from amct_onnx.graph.op_table import resolve_constant
from amct_onnx.graph.parts import Node
from amct_onnx.graph.weights import Array


def quantizer_parameters(node: Node) -> tuple[Array, Array] | None:
    """Scale and zero point, where both are constant numbers."""
    constants = [resolve_constant(tensor) for tensor in node.inputs[1:3]]
    arrays = [constant_array(constant) for constant in constants if constant is not None]
    if len(arrays) != 2 or any(array.ndim for array in arrays) or not np.issubdtype(arrays[1].dtype, np.integer):
        return None
    return arrays[0], arrays[1]


def quantizer_range(node: Node) -> tuple[float, float] | None:
    """Smallest and largest value that survive, as float32; None where the parameters are no constant numbers."""
    parameters = quantizer_parameters(node)
    if parameters is None:
        return None
    (scale, zero_point), limits = parameters, np.iinfo(parameters[1].dtype.name)
    low, high = (float(np.float32((limit - int(zero_point)) * float(scale))) for limit in (limits.min, limits.max))
    return low, high
