"""The output forms and the passes that make each of them."""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence

from amct_onnx.graph import BuiltModel, build
from amct_onnx.passes.base import Pass, PassTiming, run_pipeline
from amct_onnx.passes.drop_dead import DropDeadConstants
from amct_onnx.passes.fold_gemm import FoldGemm
from amct_onnx.passes.insert_ascend import InsertDequant, InsertQuant, MergeQuants, QuantizeBiases, QuantizeWeights
from amct_onnx.passes.insert_qdq import QdqBiases, QdqPairs, QdqTarget, QdqWeights
from amct_onnx.passes.locate import Layer, locate_layers
from amct_onnx.passes.lower_fake_quant import LowerDequants, LowerQuants
from amct_onnx.passes.quant_params import LayerQuant, TensorQuant
from amct_onnx.rewrite.prepare import Prepared


class OutputForm(enum.Enum):
    """A kind of compressed model."""

    ASCEND = "ascend"
    FAKE_QUANT = "fake_quant"
    QDQ = "qdq"

    @property
    def minimum_opset(self) -> int:
        """Oldest operator set that has what the form needs: Round and Clip inputs, DequantizeLinear per channel."""
        return {"ascend": 1, "fake_quant": 11, "qdq": 13}[self.value]

    @property
    def suffix(self) -> str:
        """What follows the prefix in the file name."""
        return {"ascend": "deploy_model", "fake_quant": "fake_quant_model", "qdq": "qdq_model"}[self.value] + ".onnx"


def rewrite(
    prepared: Prepared,
    quants: Mapping[str, LayerQuant],
    form: OutputForm,
    *,
    pairs: Mapping[str, TensorQuant] | None = None,
    target: QdqTarget = QdqTarget.ONNXRUNTIME,
) -> tuple[BuiltModel, list[PassTiming]]:
    """Rewrite a prepared model into one form.

    Args:
        prepared: the model; not changed.
        quants: layer name -> its quantization; every name is a quantizable layer of the model.
        form: which form.
        pairs: tensor name -> quantization of what only the QDQ form quantizes.
        target: runtime of the QDQ form.

    Returns:
        The finished model and the seconds each pass took.
    """
    prepared = prepared.at_opset(form.minimum_opset)
    model = prepared.model.copy()
    _, timings = run_pipeline(model, [FoldGemm(quants.keys())])
    layers = [layer for layer in locate_layers(model).layers if layer.name in quants]
    _, more = run_pipeline(model, _pipeline(form, layers, quants, pairs or {}, target))
    return build(model), [*timings, *more]


def _pipeline(
    form: OutputForm,
    layers: Sequence[Layer],
    quants: Mapping[str, LayerQuant],
    pairs: Mapping[str, TensorQuant],
    target: QdqTarget,
) -> list[Pass]:
    if form is OutputForm.QDQ:
        inputs = {layer.activation.name: quants[layer.name].data for layer in layers}
        return [
            QdqWeights(layers, quants),
            QdqBiases(layers, quants, target),
            QdqPairs({**pairs, **inputs}, layers, target),
            DropDeadConstants(),
        ]
    ascend: list[Pass] = [
        InsertQuant(layers, quants),
        QuantizeWeights(layers, quants),
        QuantizeBiases(layers, quants),
        InsertDequant(layers, quants),
        MergeQuants(),
        DropDeadConstants(),
    ]
    if form is OutputForm.ASCEND:
        return ascend
    return [*ascend, LowerQuants(), LowerDequants()]
