"""What is known of a computed tensor's shape without inference: declared, or as its producers make it."""

from __future__ import annotations

from collections.abc import Sequence

from amct_onnx.graph.op_table import is_standard, resolve_constant
from amct_onnx.graph.parts import Constant, Node, Tensor

_KEEPS_SHAPE = frozenset({"Relu", "Clip", "LeakyRelu", "Sigmoid", "HardSwish", "HardSigmoid", "Tanh", "Elu", "Softmax"})
_KEEPS_RANK = frozenset({"BatchNormalization", "MaxPool", "AveragePool", "GlobalAveragePool", "GlobalMaxPool"})
_MAKES_CHANNELS = frozenset({"Conv", "ConvTranspose"})


_ARITHMETIC = frozenset({"Mul", "Div", "Add", "Sub"})

_FARTHEST = 16
"""Nodes to go back at most, so that a long chain is not walked again from each of its nodes."""


def rank_and_channels(tensor: Tensor) -> tuple[int | None, int | None]:
    """Number of axes, and size of axis 1; each None when unknown."""
    constants: list[Sequence[int]] = []
    for _ in range(_FARTHEST):
        found = _own_facts(tensor)
        if found is not None or not tensor.inputs:
            break
        node = tensor.inputs[0]
        data = _shaping_input(node, constants)
        if data is None:
            break
        tensor = data
    else:
        found = None
    rank, channels = found or (None, None)
    is_kept = all(_keeps(shape, rank, channels) for shape in constants)
    return (rank, channels) if is_kept else (None, None)


def _own_facts(tensor: Tensor) -> tuple[int, int | None] | None:
    """What is declared of a tensor, or follows from the weight of the convolution that makes it."""
    if tensor.shape is not None:
        size = tensor.shape[1] if len(tensor.shape) > 1 else None
        return len(tensor.shape), size if isinstance(size, int) else None
    node = tensor.inputs[0] if tensor.inputs else None
    if node is None or node.op not in _MAKES_CHANNELS or not is_standard(node):
        return None
    weight = resolve_constant(node.inputs[1])
    return None if weight is None else (len(weight.shape), _conv_channels(node, weight))


def _shaping_input(node: Node, constants: list[Sequence[int]]) -> Tensor | None:
    """The input whose rank and channels the node's result has; a constant beside it goes to `constants`."""
    if not is_standard(node):
        return None
    if node.op in _KEEPS_SHAPE | _KEEPS_RANK:
        return node.inputs[0]
    if node.op not in _ARITHMETIC or len(node.inputs) != 2:
        return None
    first, second = node.inputs
    for data, other in ((first, second), (second, first)):
        constant = resolve_constant(other)
        if constant is not None:
            constants.append(constant.shape)
            return data
    return None


def _keeps(shape: Sequence[int], rank: int | None, channels: int | None) -> bool:
    """Whether a constant of this shape leaves data of known rank and channels as it is, as far as these two go."""
    if rank is None or len(shape) > rank:
        return False
    axis = len(shape) - rank + 1
    return axis < 0 or axis >= len(shape) or shape[axis] in (1, channels)


def _conv_channels(node: Node, weight: Constant) -> int:
    if node.op == "Conv":
        return int(weight.shape[0])
    return int(weight.shape[1]) * int(node.attrs.get("group", 1))
