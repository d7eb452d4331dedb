"""Fold what multiplies and shifts a convolution's input channels into the convolution."""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from amct_onnx.graph.edit import Editor, replace_input
from amct_onnx.graph.model import Model
from amct_onnx.graph.parts import Constant, Node, Tensor
from amct_onnx.graph.weights import Array
from amct_onnx.passes.affine import IDENTITY, Affine, AffineReader, Layout, broadcasts, data_operand
from amct_onnx.passes.base import PassResult
from amct_onnx.passes.channel_weights import (
    bias_values,
    reason_against_layer,
    response,
    scale_inputs,
    set_bias,
    weight_of,
)


@dataclass(frozen=True)
class FuseAffineBefore:
    """A chain of BatchNormalization, Mul, Div, Add and Sub with constants, then Conv, becomes one Conv.

    The chain is ``factor * x + shift`` per input channel, so ``w' = w * factor`` along the input channels and
    ``b' = b + sum(w * shift)``, computed in float64. Padding adds zeros behind the chain, which before it would have to
    be another value: so with padding only chains without shift. Only where each link is the single reader of the one
    before and changes no shape, all values are constant and finite, and no other node reads the convolution's weight
    or bias.

    Attributes:
        skip: names of convolutions, and of nodes before them, to leave alone.
        arithmetic: whether Mul, Div, Add and Sub count.
    """

    skip: Container[str] = ()
    arithmetic: bool = True

    def run(self, model: Model) -> PassResult:
        """Fuse wherever the rule fits."""
        editor = Editor(model)
        reader = AffineReader.of(model, arithmetic=self.arithmetic)
        merged: dict[str, tuple[str, ...]] = {}
        withheld: list[str] = []
        for conv in model.graph.nodes:
            weight = weight_of(conv) if conv.op == "Conv" else None
            if weight is None:
                continue
            found = _chain(reader, editor, conv, weight)
            allowed = [] if conv.name in self.skip else _until_skipped(found, self.skip)
            if len(allowed) < len(found):
                withheld.append(conv.name)
            if allowed:
                merged[conv.name] = (*(link.name for link, _ in reversed(allowed)), conv.name)
                _fuse(model, editor, conv, allowed, int(weight.shape[0]))
        editor.commit()
        return PassResult(tuple(merged), (), merged, tuple(withheld))


_Chain: TypeAlias = list[tuple[Node, Affine]]
"""Nodes before a convolution, nearest first, each with what it and those behind it do together."""


def _until_skipped(chain: _Chain, skip: Container[str]) -> _Chain:
    count = next((index for index, (link, _) in enumerate(chain) if link.name in skip), len(chain))
    return chain[:count]


def _chain(reader: AffineReader, editor: Editor, conv: Node, weight: Constant) -> _Chain:
    """The longest chain before `conv` that can be folded."""
    layout = Layout(int(weight.shape[1]) * int(conv.attrs.get("group", 1)), len(weight.shape) - 2, len(weight.shape))
    pads = _is_padded(conv)
    chain: _Chain = []
    tensor, so_far = conv.inputs[0], IDENTITY
    while (link := _previous(editor, tensor)) is not None:
        data = data_operand(link)
        if data is None or not reader.is_candidate(link, data) or broadcasts(link, data, layout):
            break
        step = reader.read(link, data, layout)
        longer = step if isinstance(step, str) else step.then(so_far)
        if isinstance(longer, str) or not _is_legal(conv, longer, pads=pads):
            break
        chain.append((link, longer))
        tensor, so_far = data, longer
    return chain


def _previous(editor: Editor, tensor: Tensor) -> Node | None:
    """The producer of a tensor that nothing else reads."""
    is_private = len(tensor.outputs) == 1 and not editor.is_output(tensor) and not editor.is_body_output(tensor)
    return tensor.inputs[0] if is_private and tensor.inputs else None


def _is_padded(conv: Node) -> bool:
    if conv.attrs.get("auto_pad", "NOTSET") not in ("NOTSET", "VALID"):
        return True
    return conv.attrs.get("auto_pad", "NOTSET") == "NOTSET" and any(conv.attrs.get("pads", ()))


def _is_legal(conv: Node, affine: Affine, *, pads: bool) -> bool:
    if not affine.is_sound or (pads and affine.shifts):
        return False
    return reason_against_layer(conv, affine) is None and bool(np.isfinite(_bias(conv, affine)).all())


def _bias(conv: Node, affine: Affine) -> Array:
    bias = bias_values(conv)
    with np.errstate(over="ignore", invalid="ignore"):
        return np.asarray(bias + response(conv, affine.shift) if affine.shifts else bias, np.float32)


def _fuse(model: Model, editor: Editor, conv: Node, chain: _Chain, channels: int) -> None:
    link, affine = chain[-1]
    data = data_operand(link)
    bias = _bias(conv, affine)
    if affine.scales:
        scale_inputs(model, conv, affine.factor)
    set_bias(model, conv, bias, channels)
    for node, _ in chain:
        editor.remove(node)
    replace_input(conv, 0, data)
