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
