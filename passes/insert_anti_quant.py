"""Quantize single inputs of nodes in the Ascend form: AscendQuant, then AscendAntiQuant, at that input alone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from amct_onnx.graph.edit import Editor, replace_input
from amct_onnx.graph.model import Model
from amct_onnx.graph.parts import Node, Tensor
from amct_onnx.passes.base import PassResult
from amct_onnx.passes.input_sites import InputSites
from amct_onnx.passes.insert_ascend import quant_node
from amct_onnx.passes.quant_params import TensorQuant


@dataclass(frozen=True)
class InsertAntiQuants:
    """``y = (q - offset) * scale`` at each named input; unlike AscendQuant, AscendAntiQuant takes scale_d itself.

    Attributes:
        inputs: ``node:index`` -> how that input is quantized.
    """

    inputs: Mapping[str, TensorQuant]

    def run(self, model: Model) -> PassResult:
        """Insert the nodes; equal AscendQuant nodes are merged later, those of layers included."""
        editor = Editor(model)
        for site in InputSites(model, ()).at(self.inputs):
            quant = quant_node(model, f"{site.stem}.quant", site.tensor, self.inputs[site.key])
            anti = anti_quant_node(model, site.stem, quant.outputs[0], self.inputs[site.key])
            replace_input(site.node, site.index, anti.outputs[0])
            editor.insert_before(site.node, [quant, anti])
        editor.commit()
        return PassResult(tuple(self.inputs))


def anti_quant_node(model: Model, stem: str, integers: Tensor, quant: TensorQuant) -> Node:
    """An AscendAntiQuant ``stem.anti_quant`` on the result of an AscendQuant, not placed yet."""
    return Node(
        "AscendAntiQuant",
        f"{stem}.anti_quant",
        attrs={
            "scale": float(np.float32(quant.scale)),
            "offset": float(quant.offset),
            "dst_type": f"INT{quant.bits}",
        },
        inputs=[integers],
        outputs=[model.new_tensor(f"{stem}.anti_quant.output0", np.dtype(np.float32))],
    )
