"""Find the layers that can be thinned out 4:2, and say of every other why not."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from amct_onnx.graph.model import Model
from amct_onnx.graph.op_table import resolve_constant, spec_of
from amct_onnx.graph.parts import Constant, Node, Tensor
from amct_onnx.passes.base import Refusal
from amct_onnx.passes.sparsity.input_axis import InputAxis, input_axis

OPERATORS = ("Conv", "ConvTranspose", "Gemm", "MatMul")
GROUP, KEPT = 4, 2
"""Of every `GROUP` weights along the input channels `KEPT` stay."""

Way: TypeAlias = tuple[tuple[int, ...], tuple[int, ...]]

_COMPUTED = "its weight is computed at run time, not a constant"
_FOLD = "fold constants before export"


@dataclass(frozen=True)
class SparseLayer:
    """A layer that can be thinned out.

    Attributes:
        node: the layer.
        index: which of its inputs is the weight.
        weight: the weight.
        axis: where the input channels lie in it.
        shares: names of the layers that read the same weight, itself included.
    """

    node: Node
    index: int
    weight: Constant
    axis: InputAxis
    shares: tuple[str, ...]

    @property
    def name(self) -> str:
        """Name of the layer."""
        return str(self.node.name)

    @property
    def op_type(self) -> str:
        """ONNX operator type."""
        return str(self.node.op)

    @property
    def zero_share(self) -> float:
        """Share of its weights that become zero: half, but for what a last group of fewer than four keeps."""
        channels = self.axis.per_group
        return 1 - (channels // GROUP * KEPT + min(channels % GROUP, KEPT)) / channels


@dataclass(frozen=True)
class Candidates:
    """The layers that can be thinned out, in graph order, and why others cannot."""

    layers: tuple[SparseLayer, ...]
    refusals: tuple[Refusal, ...]


def find_candidates(model: Model, left: Mapping[str, str] | None = None) -> Candidates:
    """Survey every graph of a named model.

    Args:
        model: the model.
        left: layers to leave as they are -> why.
    """
    left = left or {}
    layers: list[SparseLayer] = []
    refusals: list[Refusal] = []
    readers: dict[int, tuple[str, ...]] = {}
    for node in model.nodes():
        if node.op not in OPERATORS or spec_of(node).weight is None:
            continue
        found = _layer(node, readers)
        reason = (left[str(node.name)], "") if node.name in left else _obstacle(node, found)
        if reason is not None:
            refusals.append(Refusal(str(node.name), str(node.op), *reason))
        elif found is not None:
            layers.append(found)
    return _without_torn(layers, refusals)


def _layer(node: Node, readers: dict[int, tuple[str, ...]]) -> SparseLayer | None:
    """The layer with its constant weight; None where it has none, or two. Of a weight the readers are found once."""
    constants = [(index, resolve_constant(tensor)) for index, tensor in enumerate(node.inputs[:2])]
    usual = constants[1][1] if len(constants) > 1 else None
    first = constants[0][1] if node.op == "MatMul" else None
    if (usual is None) == (first is None):
        return None
    index, weight = (1, usual) if usual is not None else (0, first)
    if weight is None or len(weight.shape) < 2:
        return None
    axis = input_axis(node, index, tuple(int(size) for size in weight.shape))
    if id(weight) not in readers:
        readers[id(weight)] = tuple(dict.fromkeys(_readers(node.inputs[index])))
    return SparseLayer(node, index, weight, axis, readers[id(weight)])


def _readers(weight: Tensor) -> Iterable[str]:
    """Names of all nodes that read a constant, which Constant and Identity nodes may hand on."""
    while weight.inputs and weight.inputs[0].op == "Identity":
        weight = weight.inputs[0].inputs[0]
    waiting = [weight]
    while waiting:
        for reader in waiting.pop(0).outputs:
            if reader.op == "Identity":
                waiting.extend(reader.outputs)
            else:
                yield str(reader.name)


def _obstacle(node: Node, layer: SparseLayer | None) -> tuple[str, str] | None:
    """Why a layer cannot be thinned out, and the remedy."""
    if layer is None:
        constants = [resolve_constant(tensor) for tensor in node.inputs[:2]]
        if all(constant is None for constant in constants):
            return "both its inputs are computed at run time, there is no weight", ""
        is_vector = any(constant is not None and len(constant.shape) < 2 for constant in constants)
        return ("its weight is a vector", "reshape it to a matrix") if is_vector else (_COMPUTED, _FOLD)
    if np.dtype(layer.weight.dtype).kind != "f":
        return f"its weight holds {np.dtype(layer.weight.dtype).name}, not floats", "prune the float model instead"
    if 0 in layer.weight.shape:
        return "its weight holds nothing", ""
    if layer.axis.per_group <= KEPT:
        channels = "1 input channel" if layer.axis.per_group == 1 else f"{layer.axis.per_group} input channels"
        return f"of every four weights {KEPT} stay, and it has {channels} per group", ""
    return None


def _without_torn(layers: list[SparseLayer], refusals: list[Refusal]) -> Candidates:
    """Leave out layers whose weight something else reads, or reads another way: it would lose weights as well."""
    ways: dict[int, dict[str, Way]] = {}
    for layer in layers:
        ways.setdefault(id(layer.weight), {})[layer.name] = _way(layer)
    torn: dict[tuple[int, Way], str | None] = {}
    stay: list[SparseLayer] = []
    for layer in layers:
        key = (id(layer.weight), _way(layer))
        if key not in torn:
            own = ways[key[0]]
            torn[key] = next((name for name in layer.shares if own.get(name) != key[1]), None)
        if torn[key] is None:
            stay.append(layer)
            continue
        reason = f"'{torn[key]}' reads its weight, too, and is not thinned out in the same way"
        refusals.append(Refusal(layer.name, layer.op_type, reason, "give each a weight of its own"))
    return Candidates(tuple(stay), tuple(refusals))


def _way(layer: SparseLayer) -> Way:
    """Where a layer finds its input channels in the weight."""
    return layer.axis.channels.view, layer.axis.channels.axes
