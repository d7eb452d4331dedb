"""Fold what multiplies and shifts a layer's output channels into the layer."""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np

from amct_onnx.graph.edit import Editor, replace_output
from amct_onnx.graph.model import Model
from amct_onnx.graph.parts import Constant, Node, Tensor
from amct_onnx.passes.affine import IDENTITY, Affine, AffineReader, is_norm
from amct_onnx.passes.base import SKIPPED, PassResult, Refusal
from amct_onnx.passes.channel_weights import (
    BIASED,
    SHARED,
    bias_values,
    output_layout,
    reason_against_layer,
    scale_outputs,
    set_bias,
    weight_of,
)


@dataclass(frozen=True)
class FuseAffine:
    """A layer followed by a chain of BatchNormalization, Mul, Div, Add and Sub with constants becomes one layer.

    Layers are Conv, ConvTranspose, Gemm and MatMul with a constant weight. The chain is ``factor * y + shift`` per
    output channel (a BatchNormalization has ``factor = gamma / sqrt(var + eps)``, ``shift = beta - mean * factor``), so
    ``w' = w * factor`` along the output channels and ``b' = b * factor + shift``, computed in float64. A MatMul keeps
    its bias in an Add behind it. Only where each link is the single reader of the one before, all values are constant
    and finite, and no other node reads the layer's weight or bias.

    Attributes:
        skip: names of layers, and of nodes behind them, to leave alone.
        arithmetic: whether Mul, Div, Add and Sub count.
    """

    skip: Container[str] = ()
    arithmetic: bool = True

    def run(self, model: Model) -> PassResult:
        """Fuse wherever the rule fits."""
        editor = Editor(model)
        search = _Search(AffineReader.of(model, arithmetic=self.arithmetic), editor, self.skip)
        merged: dict[str, tuple[str, ...]] = {}
        for node in model.graph.nodes:
            weight = weight_of(node)
            chain = [] if weight is None else search.chain(node, weight)
            if weight is None or not chain:
                continue
            merged[node.name] = (node.name, *(link.name for link, _ in chain))
            fuse = _fuse if node.op in BIASED else _fuse_product
            fuse(model, editor, node, chain, output_layout(node, weight).channels)
        editor.commit()
        return PassResult(tuple(merged), tuple(search.refusals), merged, tuple(search.withheld))


_Chain: TypeAlias = list[tuple[Node, Affine]]
"""Nodes behind a layer, in order, each with what it and those before it do together."""


@dataclass
class _Search:
    """Finds chains; collects why some were left."""

    reader: AffineReader
    editor: Editor
    skip: Container[str]
    refusals: list[Refusal] = field(default_factory=list)
    withheld: list[str] = field(default_factory=list)

    def chain(self, layer: Node, weight: Constant) -> _Chain:
        """The longest chain behind `layer` that can be folded; empty where there is nothing to do."""
        layout = output_layout(layer, weight)
        chain: _Chain = []
        tensor, so_far = layer.outputs[0], IDENTITY
        while (link := self._next(tensor)) is not None:
            step = self.reader.read(link, tensor, layout)
            longer = step if isinstance(step, str) else so_far.then(step)
            reason = self._reason_against(layer, tensor, longer)
            if isinstance(longer, str) or reason is not None:
                self._refuse(layer, link, reason or "")
                break
            chain.append((link, longer))
            tensor, so_far = link.outputs[0], longer
        return [] if _is_bare(layer, chain) else self._allowed(layer, chain)

    def _next(self, tensor: Tensor) -> Node | None:
        """The node that continues a chain: the single reader, or a normalization among several."""
        readers: list[Node] = tensor.outputs
        found = (node for node in readers if len(readers) == 1 or is_norm(node))
        return next((node for node in found if self.reader.is_candidate(node, tensor)), None)

    def _reason_against(self, layer: Node, tensor: Tensor, affine: Affine | str) -> str | None:
        if isinstance(affine, str):
            return affine
        if len(tensor.outputs) != 1 or self.editor.is_output(tensor) or self.editor.is_body_output(tensor):
            return "the layer's output has other readers"
        if not affine.is_sound:
            return "all factors together are too large"
        reason = reason_against_layer(layer, affine)
        if reason is not None or layer.op not in BIASED:
            return reason
        with np.errstate(over="ignore", invalid="ignore"):
            bias = (bias_values(layer) * affine.factor + affine.shift).astype(np.float32)
        return None if np.isfinite(bias).all() else "the bias would not be finite"

    def _allowed(self, layer: Node, chain: _Chain) -> _Chain:
        """The part of `chain` before the first node that is to be left alone."""
        names = [link.name for link, _ in chain]
        count = (
            0
            if layer.name in self.skip
            else next((index for index, name in enumerate(names) if name in self.skip), len(chain))
        )
        if count < len(chain):
            self.withheld.append(layer.name)
            self._refuse(layer, chain[count][0], SKIPPED)
        return [] if _is_bare(layer, chain[:count]) else chain[:count]

    def _refuse(self, layer: Node, link: Node, reason: str) -> None:
        """Keep the reason where a user would ask: an Add or Mul that does not fit is nothing out of the ordinary."""
        if is_norm(link) or reason in (SHARED, SKIPPED):
            self.refusals.append(Refusal(link.name, link.op, f"not fused into '{layer.name}': {reason}"))


def _is_bare(layer: Node, chain: _Chain) -> bool:
    """Whether the chain is empty, or the bias of a MatMul where it belongs."""
    return not chain or (layer.op == "MatMul" and len(chain) == 1 and chain[0][0].op == "Add")


def _fuse(model: Model, editor: Editor, layer: Node, chain: _Chain, channels: int) -> None:
    affine = chain[-1][1]
    bias = bias_values(layer) * affine.factor + affine.shift
    if affine.scales:
        scale_outputs(model, layer, affine.factor)
    set_bias(model, layer, bias, channels)
    replace_output(layer, 0, _take_out(editor, chain))


def _fuse_product(model: Model, editor: Editor, layer: Node, chain: _Chain, channels: int) -> None:
    affine = chain[-1][1]
    add = next((link.name for link, _ in chain if link.op == "Add"), f"{layer.name}.bias_add")
    if affine.scales:
        scale_outputs(model, layer, affine.factor)
    output = _take_out(editor, chain)
    if not affine.shifts:
        replace_output(layer, 0, output)
        return
    product = model.new_tensor(f"{layer.name}.product", np.dtype(np.float32))
    bias = np.array(np.broadcast_to(affine.shift, (channels,)), np.float32)
    replace_output(layer, 0, product)
    node = Node("Add", add, inputs=[product, model.add_constant(f"{layer.name}.bias", bias)], outputs=[output])
    editor.insert_after(layer, [node])


def _take_out(editor: Editor, chain: _Chain) -> Tensor:
    """Remove the chain; the tensor that it ended in."""
    output = chain[-1][0].outputs[0]
    for link, _ in chain:
        editor.remove(link)
    return output
