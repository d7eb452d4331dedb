"""Apply DMQ balance factors: divide a layer's input channels, multiply the weights that meet them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from amct_onnx.graph.channels import Channels
from amct_onnx.graph.edit import Editor, replace_input
from amct_onnx.graph.model import Model, constant_array
from amct_onnx.graph.op_table import is_standard, known_constant, rank_of, resolve_constant, spec_of
from amct_onnx.graph.parts import Node, Tensor
from amct_onnx.graph.weights import Array, DerivedValues
from amct_onnx.passes.base import PassResult
from amct_onnx.passes.insert_ascend import bias_position, weight_index
from amct_onnx.passes.locate import Layer, locate_layers

Factors = NDArray[np.float32]


@dataclass(frozen=True)
class Divided:
    """A tensor that holds another's values divided per channel.

    Attributes:
        source: name of the tensor that the model had before.
        inverse: one over the factors, in a shape that multiplies the source.
    """

    source: str
    inverse: Factors = field(compare=False)

    def of(self, array: Array) -> Array:
        """The values of this tensor, from those of the source."""
        return np.asarray(array * self.inverse, array.dtype)


@dataclass(frozen=True)
class BalanceResult(PassResult):
    """What balancing did.

    Attributes:
        divided: name of a tensor -> where its values come from.
        folded: layer whose output channels are divided -> by what, float32 [channels_out].
        multiplied: names of the Mul nodes that were inserted.
    """

    divided: Mapping[str, Divided] = field(default_factory=dict)
    folded: Mapping[str, Factors] = field(default_factory=dict)
    multiplied: frozenset[str] = frozenset()


@dataclass(frozen=True)
class BalanceLayers:
    """Weights times f along the input channels; data input divided by f. Factors that do not fit change nothing.

    The division is folded into what computes the input where that is exact: a layer, a normalization or constant
    Mul and Add, perhaps behind operators that commute with positive factors, that nothing else reads. Elsewhere a Mul
    by ``1 / f`` named ``L.mul`` is put before the layer, one for all that read the same channels of a tensor with equal
    factors.

    Attributes:
        factors: layer name -> float32 [channels_in].
    """

    factors: Mapping[str, Factors]

    def run(self, model: Model) -> BalanceResult:
        """Balance every named layer."""
        survey = locate_layers(model)
        work = _Balancing(model, survey.layers)
        groups: dict[tuple[int, int, bytes], list[Layer]] = {}
        for layer in survey.layers:
            if _fits(layer, self.factors.get(layer.name)):
                factors = np.asarray(self.factors[layer.name], np.float32)
                key = (id(layer.activation), layer.spec.channel_axis, factors.tobytes())
                groups.setdefault(key, []).append(layer)
        for members in groups.values():
            work.balance(members, np.asarray(self.factors[members[0].name], np.float32))
        work.editor.commit()
        return BalanceResult(
            changed=tuple(layer.name for members in groups.values() for layer in members),
            divided=work.divided,
            folded=work.folded,
            multiplied=frozenset(node.name for node in work.multiplied),
        )


def _fits(layer: Layer, factors: Factors | None) -> bool:
    """Whether there is one usable factor per input channel; what does not fit is reported where the plan is checked."""
    if factors is None or len(factors) != layer.channels_in:
        return False
    return bool(np.all(np.isfinite(factors) & (np.asarray(factors) > 0)))


class _Balancing:
    def __init__(self, model: Model, layers: tuple[Layer, ...]) -> None:
        self._model = model
        self.editor = Editor(model)
        self._elsewhere = model.body_node_ids()
        self._producers = {id(layer.output): layer for layer in layers if layer.weight is not None}
        self.divided: dict[str, Divided] = {}
        self.folded: dict[str, Factors] = {}
        self.multiplied: list[Node] = []

    def balance(self, members: Sequence[Layer], factors: Factors) -> None:
        """Balance layers that read one tensor with the same factors."""
        first = members[0]
        for layer in members:
            self._scale_weight(layer, layer.in_channels, factors)
        source = self._source(first, members)
        if source is None:
            self._multiply(members, factors)
            return
        inverse = np.float32(1) / factors
        row = inverse.reshape(_row_shape(first, factors.size))
        if source.layer is not None:
            self._fold(source.layer, factors)
        for node, index in source.constants:
            values = constant_array(known_constant(node.inputs[index]))
            per_channel = inverse if node.op in _NORMALIZATIONS else row
            divided = np.asarray(values * per_channel.reshape(per_channel.shape[-max(1, values.ndim) :]), np.float32)
            replace_input(node, index, self._model.rewrite_constant(node.inputs[index], divided))
        self.divided.update({tensor.name: Divided(tensor.name, row) for tensor in source.tensors})

    def _source(self, first: Layer, members: Sequence[Layer]) -> _Source | None:
        """Where the division can go instead of into a Mul; None when others see a tensor on the way."""
        axis, tensor = first.spec.channel_axis, first.activation
        reach = 1 if axis == -1 or first.weight is None else len(first.weight.shape) - 1
        readers = {id(layer.node) for layer in members}
        tensors: list[Tensor] = []
        constants: list[tuple[Node, int]] = []
        while tensor.inputs and self._is_private(tensor, readers):
            tensors.append(tensor)
            layer = self._producers.get(id(tensor))
            if layer is not None:
                is_aligned = layer.spec.channel_axis == axis and layer.channels_out == first.channels_in
                return _Source(tensors, constants, layer) if is_aligned else None
            node = tensor.inputs[0]
            step = _step(node, axis, reach)
            if step is None:
                return None
            constants += [(node, index) for index in step.divided]
            if step.ends:
                return _Source(tensors, constants)
            readers = {id(node)}
            tensor = node.inputs[step.data]
        return None

    def _is_private(self, tensor: Tensor, readers: set[int]) -> bool:
        if self.editor.is_output(tensor) or self.editor.is_body_output(tensor):
            return False
        if any(id(node) not in readers for node in tensor.outputs):
            return False
        return not any(id(node) in self._elsewhere for node in (*tensor.inputs, *tensor.outputs))

    def _fold(self, producer: Layer, factors: Factors) -> None:
        inverse = np.float32(1) / factors
        self._scale_weight(producer, producer.out_channels, inverse)
        self.folded[producer.name] = factors
        if producer.bias is not None:
            node, position = bias_position(producer)
            bias = np.asarray(constant_array(producer.bias) * inverse, np.float32)
            replace_input(node, position, self._model.rewrite_constant(node.inputs[position], bias))

    def _scale_weight(self, layer: Layer, channels: Channels, factors: Factors) -> None:
        # A layer that was balanced and is folded into reads another constant than at the survey.
        index = weight_index(layer)
        old = layer.node.inputs[index]
        current = known_constant(old)

        def values() -> Array:
            array = constant_array(current)
            return np.asarray(array.reshape(channels.view) * channels.spread(factors), np.float32).reshape(array.shape)

        derived = DerivedValues(list(current.shape), np.dtype(np.float32), values)
        replace_input(layer.node, index, self._model.rewrite_constant(old, derived))

    def _multiply(self, members: Sequence[Layer], factors: Factors) -> None:
        layer = members[0]
        name, data = f"{layer.name}.mul", layer.activation
        inverse = (np.float32(1) / factors).reshape(_row_shape(layer, factors.size))
        constant = self._model.add_constant(f"{layer.name}.tensor_balance_factor", inverse)
        output = self._model.new_tensor(f"{name}.output0", np.dtype(np.float32))
        output.shape = data.shape
        self.multiplied.append(Node("Mul", name, inputs=[data, constant], outputs=[output]))
        self.editor.insert_before(layer.node, self.multiplied[-1:])
        for member in members:
            replace_input(member.node, 0, output)
        self.divided[output.name] = Divided(data.name, inverse)


@dataclass(frozen=True)
class _Source:
    """Where a division goes: constants on the way, a layer at the end of it; `tensors` are divided by it."""

    tensors: Sequence[Tensor]
    constants: Sequence[tuple[Node, int]]
    layer: Layer | None = None


@dataclass(frozen=True)
class _Step:
    """How a division passes one operator: its constants to divide, and whether its data input stays as it is."""

    data: int = 0
    divided: tuple[int, ...] = ()
    ends: bool = False


_NORMALIZATIONS = {"BatchNormalization": 1, "LayerNormalization": -1}
"""Operators with scale and bias per channel as inputs 1 and 2, and their channel axis."""


def _step(node: Node, axis: int, reach: int) -> _Step | None:
    """The step through an operator, None when a division per channel cannot pass it exactly.

    Args:
        node: the operator.
        axis: where the channels are.
        reach: how many axes a constant needs to have one for the channels.
    """
    if spec_of(node).is_homogeneous:
        return _Step()
    if not is_standard(node):
        return None
    constants = tuple(index for index, tensor in enumerate(node.inputs) if _is_float_constant(tensor))
    if node.op in ("Add", "Sub", "Mul") and len(constants) == 1:
        # A scalar would have to grow, and runtimes recognize Gelu and the like by their scalars.
        shape = known_constant(node.inputs[constants[0]]).shape
        lacks_channels = math.prod(shape) == 1 or len(shape) < reach
        return None if lacks_channels else _Step(1 - constants[0], constants, ends=node.op == "Mul")
    if _NORMALIZATIONS.get(node.op) != axis or len(node.outputs) > 1 or node.attrs.get("axis", -1) != -1:
        return None
    affine = tuple(range(1, min(3, len(node.inputs))))
    return _Step(0, affine, ends=True) if set(affine) <= set(constants) else None


def _is_float_constant(tensor: Tensor) -> bool:
    constant = resolve_constant(tensor)
    return constant is not None and np.dtype(constant.dtype) == np.float32


def _row_shape(layer: Layer, size: int) -> list[int]:
    """Shape of one value per channel beside the data input; a matrix product's may have one dimension only."""
    if layer.spec.channel_axis == 1:
        spatial = len(layer.weight.shape) - 2 if layer.weight is not None else 0
        return [1, size, *[1] * spatial]
    return [size] if rank_of(layer.activation) in (None, 1) else [1, size]
