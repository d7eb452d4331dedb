"""Quantize single inputs of nodes in the QDQ form: a pair for that reader alone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from amct_onnx.graph.edit import Editor, replace_input
from amct_onnx.graph.model import Model
from amct_onnx.passes.base import PassResult
from amct_onnx.passes.input_sites import InputSites
from amct_onnx.passes.insert_qdq import QdqTarget, quantize_dequantize
from amct_onnx.passes.quant_params import TensorQuant


@dataclass(frozen=True)
class QdqInputs:
    """A pair before each named input that does not read a dequantized tensor already.

    Attributes:
        inputs: ``node:index`` -> how that input is quantized.
        target: the runtime.
    """

    inputs: Mapping[str, TensorQuant]
    target: QdqTarget

    def run(self, model: Model) -> PassResult:
        """Insert the pairs."""
        editor = Editor(model)
        changed: list[str] = []
        for site in InputSites(model, ()).at(self.inputs):
            producers = site.tensor.inputs
            if producers and producers[0].op == "DequantizeLinear":
                continue
            quant = self.inputs[site.key]
            result = model.new_tensor(f"{site.stem}.dequantized", np.dtype(np.float32))
            pair = quantize_dequantize(model, site.stem, site.tensor, result, quant, self.target)
            editor.insert_before(site.node, pair)
            replace_input(site.node, site.index, result)
            changed.append(site.key)
        editor.commit()
        return PassResult(tuple(changed))
