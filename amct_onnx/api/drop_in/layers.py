"""The layers that AMCT's functions work on."""

from __future__ import annotations

from collections.abc import Mapping

from amct_onnx.passes.fold_gemm import FoldGemm
from amct_onnx.passes.locate import Survey, locate_layers
from amct_onnx.rewrite import Prepared


def plain_layers(prepared: Prepared, skip: Mapping[str, str] | None = None) -> Survey:
    """The layers to quantize, bodies included; Gemms are brought into the form that is quantized, in place.

    Args:
        prepared: the model; only its Gemms change.
        skip: names of layers to leave out -> why.
    """
    names = {layer.name for layer in locate_layers(prepared.model, skip).layers}
    FoldGemm(names).run(prepared.model)
    return locate_layers(prepared.model, skip)
