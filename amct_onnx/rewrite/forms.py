"""The output forms and the passes that make each of them."""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence

from amct_onnx.graph import BuiltModel, Model, build
from amct_onnx.graph.parts import collection_paused
from amct_onnx.passes.absorb_casts import AbsorbCasts
from amct_onnx.passes.base import Pass, PassTiming, run_pipeline
from amct_onnx.passes.drop_clamps import DropEnforcedClamps
from amct_onnx.passes.drop_dead import DropDeadConstants
from amct_onnx.passes.fold_gemm import FoldGemm
from amct_onnx.passes.input_sites import InputSites
from amct_onnx.passes.insert_anti_quant import InsertAntiQuants
from amct_onnx.passes.insert_ascend import InsertDequant, InsertQuant, MergeQuants, QuantizeBiases, QuantizeWeights
from amct_onnx.passes.insert_qdq import QdqBiases, QdqPairs, QdqTarget, QdqWeights
from amct_onnx.passes.join_pairs import JoinPairs
from amct_onnx.passes.locate import Layer, locate_layers
from amct_onnx.passes.lower_fake_quant import LowerAntiQuants, LowerDequants, LowerQuants
from amct_onnx.passes.pack_int4 import PackInt4Weights
from amct_onnx.passes.plain_pools import DropUnitDilations
from amct_onnx.passes.qdq_inputs import QdqInputs
from amct_onnx.passes.qdq_placement import runs_on_integers
from amct_onnx.passes.quant_params import LayerQuant, TensorQuant
from amct_onnx.passes.relax_clips import RelaxClips
from amct_onnx.passes.shield_floats import ShieldFloats
from amct_onnx.rewrite.prepare import Prepared

_LOWERING: tuple[Pass, ...] = (LowerQuants(), LowerAntiQuants(), LowerDequants())


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


Rewritten = tuple[BuiltModel, list[PassTiming]]


def rewrite_all(
    prepared: Prepared,
    quants: Mapping[str, LayerQuant],
    forms: Sequence[OutputForm],
    *,
    pairs: Mapping[str, TensorQuant] | None = None,
    inputs: Mapping[str, TensorQuant] | None = None,
    target: QdqTarget = QdqTarget.ONNXRUNTIME,
) -> dict[OutputForm, Rewritten]:
    """Rewrite a prepared model into several forms; arguments and results as of :func:`rewrite`.

    The fake-quant model is the deploy model with other operators, so the two share their first passes.
    """
    both = {OutputForm.ASCEND, OutputForm.FAKE_QUANT}
    is_shared = both <= set(forms) and not 0 < prepared.model.opset < OutputForm.FAKE_QUANT.minimum_opset
    done: dict[OutputForm, Rewritten] = {}
    with collection_paused():
        for form in forms:
            if is_shared and form in both:
                if form not in done:
                    done.update(_deploy_and_fake(prepared, quants, inputs or {}))
            else:
                done[form] = rewrite(prepared, quants, form, pairs=pairs, inputs=inputs, target=target)
    return {form: done[form] for form in forms}


def _deploy_and_fake(
    prepared: Prepared, quants: Mapping[str, LayerQuant], inputs: Mapping[str, TensorQuant]
) -> dict[OutputForm, Rewritten]:
    model, layers, timings = _folded(prepared, quants)
    _, shared = run_pipeline(model, _deploy(layers, quants, inputs))
    fake = model.copy()
    _, lowering = run_pipeline(fake, _LOWERING)
    _, packing = run_pipeline(model, _packing(layers, quants))
    timings = [*timings, *shared]
    return {
        OutputForm.ASCEND: (build(model), [*timings, *packing]),
        OutputForm.FAKE_QUANT: (build(fake), [*timings, *lowering]),
    }


def rewrite(
    prepared: Prepared,
    quants: Mapping[str, LayerQuant],
    form: OutputForm,
    *,
    pairs: Mapping[str, TensorQuant] | None = None,
    inputs: Mapping[str, TensorQuant] | None = None,
    target: QdqTarget = QdqTarget.ONNXRUNTIME,
) -> Rewritten:
    """Rewrite a prepared model into one form.

    Args:
        prepared: the model; not changed.
        quants: layer name -> its quantization; every name is a quantizable layer of the model.
        form: which form.
        pairs: tensor name -> quantization of what only the QDQ form quantizes.
        inputs: ``node:index`` -> quantization of a single input of an Add or MaxPool.
        target: runtime of the QDQ form.

    Returns:
        The finished model and the seconds each pass took.
    """
    model, layers, timings = _folded(prepared.at_opset(form.minimum_opset), quants)
    _, more = run_pipeline(model, _pipeline(form, model, layers, quants, pairs or {}, inputs or {}, target))
    return build(model), [*timings, *more]


def _folded(prepared: Prepared, quants: Mapping[str, LayerQuant]) -> tuple[Model, list[Layer], list[PassTiming]]:
    """A copy with plain Gemms, and its layers to quantize."""
    model = prepared.model.copy()
    _, timings = run_pipeline(model, [FoldGemm(quants.keys())])
    return model, [layer for layer in locate_layers(model).layers if layer.name in quants], timings


def _pipeline(
    form: OutputForm,
    model: Model,
    layers: Sequence[Layer],
    quants: Mapping[str, LayerQuant],
    pairs: Mapping[str, TensorQuant],
    inputs: Mapping[str, TensorQuant],
    target: QdqTarget,
) -> list[Pass]:
    if form is OutputForm.QDQ:
        layers = [layer for layer in layers if _runs_on_integers(layer, quants[layer.name])]
        singles = {site.tensor.name: inputs[site.key] for site in InputSites(model, layers).at(inputs)}
        # The record's own scales go before those of the tensors file.
        of_record = {name: quant for name, quant in singles.items() if name in pairs}
        of_record.update({layer.activation.name: quants[layer.name].data for layer in layers})
        # TensorRT wants both halves of a pair to have one scale.
        joining: list[Pass] = [JoinPairs()] if target is QdqTarget.ONNXRUNTIME else []
        return [
            QdqWeights(layers, quants),
            QdqBiases(layers, quants, target),
            DropUnitDilations(),
            QdqPairs({**pairs, **of_record}, layers, target),
            QdqInputs(inputs, target),
            ShieldFloats(),
            *joining,
            DropEnforcedClamps(),
            DropDeadConstants(),
        ]
    if form is OutputForm.ASCEND:
        return [*_deploy(layers, quants, inputs), *_packing(layers, quants)]
    return [*_deploy(layers, quants, inputs), *_LOWERING]


def _runs_on_integers(layer: Layer, quant: LayerQuant) -> bool:
    return runs_on_integers(layer, quant.data.bits) and not (layer.has_batched_weight and quant.weight_scale.size > 1)


def _packing(layers: Sequence[Layer], quants: Mapping[str, LayerQuant]) -> list[Pass]:
    """What the ascend form alone does at the end."""
    return [PackInt4Weights(layers, quants), AbsorbCasts()]


def _deploy(layers: Sequence[Layer], quants: Mapping[str, LayerQuant], inputs: Mapping[str, TensorQuant]) -> list[Pass]:
    """What the ascend and the fake-quant form share."""
    return [
        InsertQuant(layers, quants),
        InsertAntiQuants(inputs),
        QuantizeWeights(layers, quants),
        QuantizeBiases(layers, quants),
        InsertDequant(layers, quants),
        MergeQuants(),
        RelaxClips(),
        DropDeadConstants(),
    ]
