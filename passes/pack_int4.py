"""Store 4-bit weights of the deploy form two to a byte."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from amct_onnx.graph.channels import Channels
from amct_onnx.graph.edit import replace_input
from amct_onnx.graph.model import Model, constant_array
from amct_onnx.graph.op_table import known_constant, spec_of
from amct_onnx.graph.parts import Constant
from amct_onnx.graph.weights import Array, DerivedValues
from amct_onnx.passes.base import PassResult
from amct_onnx.passes.insert_ascend import group_by_weight, weight_index
from amct_onnx.passes.locate import Layer
from amct_onnx.passes.quant_params import LayerQuant

PACKED_LAYERS = "amct_onnx.int4_weights"
"""Metadata entry of a deploy model: the names of the layers whose weights are packed, as JSON."""


@dataclass(frozen=True)
class PackInt4Weights:
    """Neighbours along the input channels share a byte, the even one in the low half; that axis is halved.

    The tensor's type stays int8, as AMCT writes it, so the model's metadata names the layers concerned.
    """

    layers: Sequence[Layer]
    quants: Mapping[str, LayerQuant]

    def run(self, model: Model) -> PassResult:
        """Pack the weight of every layer that has 4-bit weights."""
        narrow = [layer for layer in self.layers if self.quants[layer.name].weight_bits == 4]
        for members in group_by_weight(narrow, self.quants):
            first, index = members[0], weight_index(members[0])
            old = first.node.inputs[index]
            packed = model.rewrite_constant(old, _packed(known_constant(old), first.in_channels), len(members))
            for layer in members:
                replace_input(layer.node, index, packed)
        changed = tuple(layer.name for layer in narrow if layer.weight is not None)
        if changed:
            model.metadata[PACKED_LAYERS] = json.dumps(changed, ensure_ascii=False)
        return PassResult(changed)


@dataclass(frozen=True)
class UnpackInt4Weights:
    """Inverse of :class:`PackInt4Weights`, on a deploy model that was read back."""

    packed: str
    """Value of the metadata entry :data:`PACKED_LAYERS`; empty when the model has none."""

    def run(self, model: Model) -> PassResult:
        """Unpack the weight of every layer that the metadata names."""
        names = set(json.loads(self.packed)) if self.packed else set()
        changed = [node for node in model.nodes() if node.name in names]
        unpacked: dict[int, Constant] = {}
        for node in changed:
            spec = spec_of(node)
            index = spec.weight or 1
            old = known_constant(node.inputs[index])
            if id(old) not in unpacked:
                axis = spec.in_channels(node, tuple(old.shape)).axis or 0
                unpacked[id(old)] = model.add_constant(f"{node.name}.unpacked", unpack_int4(constant_array(old), axis))
            replace_input(node, index, unpacked[id(old)])
        return PassResult(tuple(node.name for node in changed))


def _packed(integers: Constant, channels: Channels) -> DerivedValues:
    axis = channels.axis
    if axis is None:
        raise TypeError("grouped weights cannot be packed")
    shape = list(integers.shape)
    shape[axis] //= 2

    def values() -> Array:
        return pack_int4(constant_array(integers), axis)

    return DerivedValues(shape, np.dtype(np.int8), values)


def pack_int4(integers: Array, axis: int) -> NDArray[np.int8]:
    """Two 4-bit integers (int8, in [-8, 7]) to a byte along `axis`, whose length is even; even indexes low."""
    rows = np.moveaxis(integers, axis, 0).astype(np.uint8)
    packed = (rows[0::2] & 0x0F) | (rows[1::2] << 4)
    return np.ascontiguousarray(np.moveaxis(packed.view(np.int8), 0, axis))


def unpack_int4(packed: Array, axis: int) -> NDArray[np.int8]:
    """Inverse of :func:`pack_int4`."""
    rows = np.moveaxis(packed, axis, 0).astype(np.int8)
    both = np.stack([(rows << 4) >> 4, rows >> 4], axis=1)
    return np.ascontiguousarray(np.moveaxis(both.reshape(-1, *rows.shape[1:]), 0, axis))
