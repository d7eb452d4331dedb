"""Inputs of nodes that a config wants quantized besides the layers, found in a model or refused."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from amct_onnx.config import ActivationOptions, TensorOptions
from amct_onnx.graph import Model
from amct_onnx.passes.base import Refusal
from amct_onnx.passes.input_sites import InputSite, InputSites, input_key
from amct_onnx.passes.locate import Layer


@dataclass(frozen=True)
class InputWish:
    """An input to quantize, and how."""

    site: InputSite
    activation: ActivationOptions


def find_inputs(
    model: Model, layers: Iterable[Layer], wanted: Iterable[TensorOptions]
) -> tuple[tuple[InputWish, ...], tuple[Refusal, ...]]:
    """The wanted inputs that can be quantized beside `layers`, and why not the others."""
    sites = InputSites(model, layers)
    found: list[InputWish] = []
    refusals: list[Refusal] = []
    for entry in wanted:
        site = sites.site(entry.node, entry.input_index)
        if isinstance(site, InputSite):
            found.append(InputWish(site, entry.activation))
        else:
            key = input_key(entry.node, entry.input_index)
            refusals.append(Refusal(key, sites.operator(entry.node), site, "take it out of tensor_quantize"))
    return tuple(found), tuple(refusals)


def in_source(model: Model, wishes: Iterable[InputWish]) -> tuple[tuple[InputWish, ...], tuple[Refusal, ...]]:
    """The wishes whose tensor the source has, which is what calibration runs, and why not the others."""
    graph = model.proto.graph
    known = {info.name for info in graph.input} | {name for node in graph.node for name in node.output}
    found: list[InputWish] = []
    refusals: list[Refusal] = []
    for wish in wishes:
        name = wish.site.tensor.name
        if name in known:
            found.append(wish)
            continue
        producer = wish.site.tensor.inputs[0].name
        reason = f"it reads what fusing made of the layer '{producer}', which the source model does not compute"
        remedy = "take it out of tensor_quantize, or switch fusing off (do_fusion)"
        refusals.append(Refusal(wish.site.key, wish.site.node.op, reason, remedy))
    return tuple(found), tuple(refusals)
