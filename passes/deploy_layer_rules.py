"""What the Ascend compiler asks of the quantized layers of a deploy model, and of the nodes around them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from amct_onnx.graph.model import Model, constant_array
from amct_onnx.graph.op_table import OpSpec, multiplies_computed, resolve_constant, spec_of
from amct_onnx.graph.parts import Constant, Node, Tensor
from amct_onnx.passes.deploy_findings import DeployFinding
from amct_onnx.passes.insert_ascend import unpack_dequant_scale
from amct_onnx.passes.pack_int4 import PACKED_LAYERS
from amct_onnx.passes.recurrent_forms import ASCEND_NAMES

OFFSETS = {"INT4": (-8, 7), "INT8": (-128, 127), "INT16": (-32768, 32767)}
"""Types that AscendQuant makes, and the zero points that each can have."""
FEW_CHANNELS = 16
_EPSILON = float(np.finfo(np.float32).eps)
_IN_INTEGERS = frozenset({"Pad"})
"""Operators that may stand between AscendQuant and its layer."""
_AGAIN = "quantize the float model again"


@dataclass(frozen=True)
class DeployedLayer:
    """A layer that computes on integers.

    Attributes:
        node: the layer.
        spec: its row of the operator table.
        quant: the AscendQuant before it.
        dequant: the AscendDequant behind it.
        bias_add: the Add between, which gives a MatMul its bias.
        second: the AscendQuant before a second input that is computed as well.
    """

    node: Node
    spec: OpSpec
    quant: Node | None
    dequant: Node | None
    bias_add: Node | None
    second: Node | None = None

    @property
    def weight(self) -> Constant | None:
        """Its weight; None without, or when it is computed."""
        return _constant_input(self.node, self.spec.weight)

    @property
    def bias(self) -> Constant | None:
        """Its bias, wherever it enters; None without."""
        if self.bias_add is None:
            return _constant_input(self.node, self.spec.bias)
        return next((found for found in map(resolve_constant, self.bias_add.inputs) if found is not None), None)


def deployed_layers(model: Model) -> list[DeployedLayer]:
    """Layers with an integer weight, an AscendQuant before them or an AscendDequant behind them."""
    layers: list[DeployedLayer] = []
    for node in model.graph.nodes:
        spec = spec_of(node)
        if not spec.has_record or not node.inputs or not node.outputs:
            continue
        bias_add, dequant = _behind(node)
        second = _quant_before(node.inputs[1]) if multiplies_computed(node) else None
        layer = DeployedLayer(node, spec, _quant_before(node.inputs[0]), dequant, bias_add, second)
        has_integers = layer.weight is not None and np.dtype(layer.weight.dtype).kind == "i"
        if layer.quant or layer.dequant or second or has_integers:
            layers.append(layer)
    return layers


def _quant_before(tensor: Tensor) -> Node | None:
    producer = tensor.inputs[0] if tensor.inputs else None
    while producer is not None and producer.op in _IN_INTEGERS:
        producer = producer.inputs[0].inputs[0] if producer.inputs[0].inputs else None
    return producer if producer is not None and producer.op == "AscendQuant" else None


def _behind(node: Node) -> tuple[Node | None, Node | None]:
    """The bias Add and the AscendDequant that read a layer's result."""
    readers = list(node.outputs[0].outputs)
    adds = [reader for reader in readers if reader.op == "Add" and _reader(reader.outputs[0]) is not None]
    if len(readers) == len(adds) == 1:
        return adds[0], _reader(adds[0].outputs[0])
    return None, _reader(node.outputs[0])


def _reader(tensor: Tensor) -> Node | None:
    return next((reader for reader in tensor.outputs if reader.op == "AscendDequant"), None)


def _constant_input(node: Node, index: int | None) -> Constant | None:
    if index is None or index >= len(node.inputs) or node.inputs[index].is_empty():
        return None
    return resolve_constant(node.inputs[index])


def enclosure_findings(model: Model, layers: Iterable[DeployedLayer]) -> Iterator[DeployFinding]:
    """Integers come from an AscendQuant, are read by a layer or an AscendAntiQuant, and leave by an AscendDequant."""
    layers = list(layers)
    outputs = model.output_ids()
    for layer in layers:
        if layer.quant is None:
            yield _finding("enclosure", layer.node, "it computes on integers, but no AscendQuant feeds it")
        if layer.dequant is None:
            yield _finding("enclosure", layer.node, "it computes on integers, but no AscendDequant reads its result")
        else:
            results = [node.outputs[0] for node in (layer.node, layer.bias_add) if node is not None]
            expected = {id(layer.bias_add), id(layer.dequant)}
            strays = [reader for tensor in results for reader in tensor.outputs if id(reader) not in expected]
            if strays or any(id(tensor) in outputs for tensor in results):
                reader = f"{strays[0].op} '{strays[0].name}'" if strays else "the model's output"
                yield _finding("enclosure", layer.node, f"its integer result also goes to {reader}")
    own = {id(layer.node) for layer in layers} | {id(layer.dequant) for layer in layers}
    for node in model.graph.nodes:
        if node.op == "AscendDequant" and id(node) not in own:
            yield _finding("enclosure", node, "it does not follow a quantized layer")
        if node.op == "AscendQuant":
            yield from _reader_findings(node, own, outputs)
        if node.op == "AscendAntiQuant" and (not node.inputs or _quant_before(node.inputs[0]) is None):
            yield _finding("enclosure", node, "it does not follow an AscendQuant")


def _reader_findings(quant: Node, own: set[int], outputs: set[int]) -> Iterator[DeployFinding]:
    tensors = [*quant.outputs]
    while tensors:
        tensor = tensors.pop()
        if id(tensor) in outputs:
            continue
        for reader in tensor.outputs:
            if reader.op in _IN_INTEGERS:
                tensors += reader.outputs
            elif id(reader) not in own and reader.op != "AscendAntiQuant":
                yield _finding(
                    "enclosure", quant, f"its integers go to {reader.op} '{reader.name}', which wants floats"
                )


def attribute_findings(model: Model) -> Iterator[DeployFinding]:
    """AscendQuant and AscendAntiQuant have scale and offset as FLOAT, AscendQuant a dst_type that exists."""
    for node in model.graph.nodes:
        if node.op not in ("AscendQuant", "AscendAntiQuant"):
            continue
        for name in ("scale", "offset"):
            value = node.attrs.get(name)
            if not isinstance(value, float):
                found = "is missing" if value is None else f"is {value!r}, not of type FLOAT"
                yield _finding("attribute", node, f"attribute {name} {found}; the compiler takes 0.0 instead")
        kind = node.attrs.get("dst_type", "INT8" if node.op == "AscendAntiQuant" else None)
        offsets = OFFSETS.get(kind.rstrip(" ")) if isinstance(kind, str) else None
        if offsets is None:
            found = "is missing" if kind is None else f"is {kind!r}"
            yield _finding("attribute", node, f"attribute dst_type {found}; it is one of {', '.join(OFFSETS)}")
        yield from _value_findings(node, offsets or OFFSETS["INT8"])


def _value_findings(node: Node, offsets: tuple[int, int]) -> Iterator[DeployFinding]:
    scale, offset = node.attrs.get("scale"), node.attrs.get("offset")
    if isinstance(scale, float):
        step = _inverse(scale) if node.op == "AscendQuant" else scale
        if not _EPSILON < step <= 1 / _EPSILON:
            message = f"scale {scale:.9g} stands for steps of {step:.9g}; devices take steps above "
            yield _finding("scale", node, f"{message}{_EPSILON:.8g} and up to {1 / _EPSILON:.0f}")
    if isinstance(offset, float) and not (offset.is_integer() and offsets[0] <= offset <= offsets[1]):
        yield _finding("offset", node, f"offset {offset:.9g} is no integer from {offsets[0]} to {offsets[1]}")


def _inverse(scale: float) -> float:
    with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
        return float(np.float32(1) / np.float32(scale))


def type_findings(layers: Iterable[DeployedLayer]) -> Iterator[DeployFinding]:
    """Weights are int8, biases int32."""
    for layer in layers:
        if layer.spec.weight is not None and layer.second is None:
            yield from _type_findings(layer, "weight", layer.weight, np.int8)
            if layer.weight is None:
                yield _finding("weight", layer.node, "its weight is not a constant")
            elif len(layer.weight.shape) < 2:
                message = f"its weight has shape {list(layer.weight.shape)}, which holds no channels"
                yield _finding("weight", layer.node, message)
        yield from _type_findings(layer, "bias", layer.bias, np.int32)


def _type_findings(layer: DeployedLayer, what: str, found: Constant | None, want: Any) -> Iterator[DeployFinding]:
    if found is not None and np.dtype(found.dtype) != want:
        message = f"its {what} is {np.dtype(found.dtype).name}; a quantized layer has {np.dtype(want).name}"
        yield _finding(what, layer.node, message)


def parameter_findings(layers: Iterable[DeployedLayer]) -> Iterator[DeployFinding]:
    """AscendDequant has a uint64 parameter, one or one per output channel, with float32 bits in its low half."""
    for layer in layers:
        dequant = layer.dequant
        if dequant is None:
            continue
        param = _constant_input(dequant, 1)
        if param is None or np.dtype(param.dtype) != np.uint64:
            found = "no constant" if param is None else np.dtype(param.dtype).name
            yield _finding("parameter", dequant, f"its second input is {found}; it takes a constant of uint64")
            continue
        values = constant_array(param)
        channels = _channels_out(layer)
        if values.ndim != 1 or values.size not in {1, channels or values.size}:
            wanted = "[1]" if channels in (None, 1) else f"[1] or [{channels}]"
            yield _finding("parameter", dequant, f"its parameter has shape {list(values.shape)}; it takes {wanted}")
        if np.any(values >> np.uint64(32)):
            yield _finding("parameter", dequant, "the upper 32 bits of its parameter (shift, weight offset) are not 0")
        yield from _multiplier_findings(dequant, unpack_dequant_scale(values))


def _multiplier_findings(dequant: Node, scales: Any) -> Iterator[DeployFinding]:
    if not np.all(np.isfinite(scales) & (scales > 0)):
        yield _finding("scale", dequant, "a scale in its parameter is not positive and finite")
    elif not np.all((scales > _EPSILON) & (scales <= 1 / _EPSILON)):
        yield DeployFinding(
            "scale",
            dequant.name,
            f"scales in its parameter reach from {scales.min():.3g} to {scales.max():.3g}; AMCT keeps scales above "
            f"{_EPSILON:.3g} and up to {1 / _EPSILON:.3g}",
            "leave the layer float if accuracy on the device suffers",
            stops=False,
        )


def _channels_out(layer: DeployedLayer) -> int | None:
    """Output channels; None when they are not known."""
    if layer.spec.weight is None or layer.second is not None:
        return 1
    weight = layer.weight
    return (
        None if weight is None or len(weight.shape) < 2 else layer.spec.out_channels(layer.node, _shape(weight)).count
    )


def channel_findings(model: Model, layers: Iterable[DeployedLayer]) -> Iterator[DeployFinding]:
    """Layers of few input channels gain nothing."""
    packed = {entry.key: entry.value for entry in model.proto.metadata_props}.get(PACKED_LAYERS)
    halved = set(json.loads(packed)) if packed else set()
    for layer in layers:
        if layer.weight is None or len(layer.weight.shape) < 2:
            continue
        count = layer.spec.in_channels(layer.node, _shape(layer.weight)).count * (1 + (layer.node.name in halved))
        if count <= FEW_CHANNELS:
            yield DeployFinding(
                "few_channels",
                layer.node.name,
                f"{count} input channels; with {FEW_CHANNELS} or fewer int8 is not faster, since devices pad them",
                "none needed; skipping it costs no speed",
                stops=False,
            )


def quantized_findings(model: Model, layers: Iterable[DeployedLayer]) -> Iterator[DeployFinding]:
    """A deploy model has quantized layers; recurrent ones are operators that quantize by themselves."""
    if not list(layers) and not any(node.op in ASCEND_NAMES for node in model.nodes()):
        message = "no layer is quantized for Ascend"
        yield DeployFinding("not_quantized", "", message, "give the *_deploy_model.onnx", stops=False)


def _shape(weight: Constant) -> tuple[int, ...]:
    return tuple(int(size) for size in weight.shape)


def _finding(rule: str, node: Node, message: str) -> DeployFinding:
    return DeployFinding(rule, node.name, message, _AGAIN)
