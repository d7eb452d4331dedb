"""The output forms and the passes that make each of them."""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

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
from amct_onnx.passes.qdq_bodies import QdqBodies, body_results
from amct_onnx.passes.qdq_inputs import QdqInputs
from amct_onnx.passes.qdq_placement import NEEDS_OUTPUT_PAIR, runs_on_integers
from amct_onnx.passes.quant_params import LayerQuant, RecurrentQuant, TensorQuant
from amct_onnx.passes.recurrent import RecurrentLayer
from amct_onnx.passes.recurrent_forms import LowerRecurrent, QuantizeRecurrent
from amct_onnx.passes.recurrent_qdq import QdqRecurrent
from amct_onnx.passes.relax_clips import RelaxClips
from amct_onnx.passes.shield_floats import ShieldFloats
from amct_onnx.rewrite.prepare import Prepared

_LOWERING: tuple[Pass, ...] = (LowerRecurrent(), LowerQuants(), LowerAntiQuants(), LowerDequants())


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


@dataclass(frozen=True)
class _Plan:
    """What a rewrite does: the layers of one copy of the model, and their quantization by name.

    Attributes:
        layers: with their quantization in `quants`.
        recurrent: with theirs in `recurrent_quants`.
        inputs: ``node:index`` -> quantization of a single input.
    """

    layers: Sequence[Layer]
    quants: Mapping[str, LayerQuant]
    recurrent: Sequence[RecurrentLayer]
    recurrent_quants: Mapping[str, RecurrentQuant]
    inputs: Mapping[str, TensorQuant]


def rewrite_all(
    prepared: Prepared,
    quants: Mapping[str, LayerQuant],
    forms: Sequence[OutputForm],
    *,
    pairs: Mapping[str, TensorQuant] | None = None,
    inputs: Mapping[str, TensorQuant] | None = None,
    recurrent: Mapping[str, RecurrentQuant] | None = None,
    target: QdqTarget = QdqTarget.ONNXRUNTIME,
    qdq_recurrent: bool = False,
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
                    done.update(_deploy_and_fake(prepared, quants, inputs or {}, recurrent or {}))
            else:
                done[form] = rewrite(
                    prepared,
                    quants,
                    form,
                    pairs=pairs,
                    inputs=inputs,
                    recurrent=recurrent,
                    target=target,
                    qdq_recurrent=qdq_recurrent,
                )
    return {form: done[form] for form in forms}


def _deploy_and_fake(
    prepared: Prepared,
    quants: Mapping[str, LayerQuant],
    inputs: Mapping[str, TensorQuant],
    recurrent: Mapping[str, RecurrentQuant],
) -> dict[OutputForm, Rewritten]:
    model, plan, timings = _folded(prepared, quants, inputs, recurrent)
    _, shared = run_pipeline(model, _deploy(plan))
    fake = model.copy()
    _, lowering = run_pipeline(fake, _LOWERING)
    _, packing = run_pipeline(model, _packing(plan))
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
    recurrent: Mapping[str, RecurrentQuant] | None = None,
    target: QdqTarget = QdqTarget.ONNXRUNTIME,
    qdq_recurrent: bool = False,
) -> Rewritten:
    """Rewrite a prepared model into one form.

    Args:
        prepared: the model; not changed.
        quants: layer name -> its quantization; every name is a quantizable layer of the model.
        form: which form.
        pairs: tensor name -> quantization of what only the QDQ form quantizes.
        inputs: ``node:index`` -> quantization of a single input of an Add or MaxPool.
        recurrent: name of a recurrent layer -> its quantization.
        target: runtime of the QDQ form.
        qdq_recurrent: quantize recurrent layers there, too, which makes the model smaller and not faster.

    Returns:
        The finished model and the seconds each pass took.
    """
    raised = prepared.at_opset(form.minimum_opset)
    model, plan, timings = _folded(raised, quants, inputs or {}, recurrent or {})
    is_qdq = form is OutputForm.QDQ
    passes = _qdq(model, plan, pairs or {}, target, recurrent=qdq_recurrent) if is_qdq else _deploy(plan)
    if form is OutputForm.ASCEND:
        passes += _packing(plan)
    if form is OutputForm.FAKE_QUANT:
        passes += _LOWERING
    _, more = run_pipeline(model, passes)
    return build(model), [*timings, *more]


def _folded(
    prepared: Prepared,
    quants: Mapping[str, LayerQuant],
    inputs: Mapping[str, TensorQuant],
    recurrent: Mapping[str, RecurrentQuant],
) -> tuple[Model, _Plan, list[PassTiming]]:
    """A copy with plain Gemms, and what to do with it."""
    model = prepared.model.copy()
    _, timings = run_pipeline(model, [FoldGemm(quants.keys())])
    survey = locate_layers(model, products=quants)
    layers = [layer for layer in survey.layers if layer.name in quants]
    found = [layer for layer in survey.recurrent if layer.name in recurrent]
    return model, _Plan(layers, quants, found, recurrent, inputs), timings


def _qdq(
    model: Model, plan: _Plan, pairs: Mapping[str, TensorQuant], target: QdqTarget, *, recurrent: bool
) -> list[Pass]:
    quants, inputs = plan.quants, plan.inputs
    of_bodies = body_result_quants(model, plan.layers, quants, pairs)
    # Products of two computed tensors have pairs of their own.
    weighted = [layer for layer in plan.layers if layer.second is None]
    able = [layer for layer in weighted if qdq_obstacle(layer, quants[layer.name], of_bodies) is None]
    layers = [layer for layer in able if not layer.in_body]
    inside = [layer for layer in able if layer.in_body]
    singles = {site.tensor.name: inputs[site.key] for site in InputSites(model, layers).at(inputs)}
    # The record's own scales go before those of the tensors file.
    of_record = {name: quant for name, quant in singles.items() if name in pairs}
    of_record.update({layer.activation.name: quants[layer.name].data for layer in layers})
    passes: list[Pass] = [
        QdqWeights(able, quants),
        QdqBiases(able, quants, target),
        DropUnitDilations(),
        QdqPairs({**pairs, **of_record}, layers, target),
        QdqInputs(inputs, target),
        QdqBodies(inside, quants, of_bodies, target),
        ShieldFloats(),
    ]
    if recurrent:
        # Before operator set 21 a pair holds 8 bits.
        narrow = [layer for layer in plan.recurrent if plan.recurrent_quants[layer.name].data.bits == 8]
        passes.append(QdqRecurrent(narrow, plan.recurrent_quants, target))
    if target is QdqTarget.ONNXRUNTIME:
        # TensorRT wants both halves of a pair to have one scale.
        passes.append(JoinPairs())
    return [*passes, DropEnforcedClamps(), DropDeadConstants()]


def body_result_quants(
    model: Model,
    layers: Sequence[Layer],
    quants: Mapping[str, LayerQuant],
    pairs: Mapping[str, TensorQuant],
) -> dict[str, TensorQuant]:
    """Quantization of the results of layers in bodies: as the layer asks that reads it there, else as the pair says."""
    read = {id(layer.activation): quants[layer.name].data for layer in layers if layer.name in quants}
    found: dict[str, TensorQuant] = {}
    for name, tensor in body_results(model, layers).items():
        quant = read.get(id(tensor), pairs.get(tensor.name))
        if quant is not None and quant.bits == 8:
            found[name] = quant
    return found


def qdq_obstacle(layer: Layer, quant: LayerQuant, of_bodies: Mapping[str, TensorQuant]) -> str | None:
    """Why a quantized layer stays float in the QDQ form; None when it runs on integers."""
    if not runs_on_integers(layer, quant.data.bits):
        return "transposed convolutions and 16-bit activations have no integer kernels there"
    if layer.has_batched_weight and quant.weight_scale.size > 1:
        return "a batch of weights has an integer kernel with one scale only"
    if layer.in_body and layer.op_type in NEEDS_OUTPUT_PAIR and layer.name not in of_bodies:
        return (
            "the tensors file holds no scale of its result inside a body (none can, where another body has a tensor of "
            "that name)"
        )
    return None


def _packing(plan: _Plan) -> list[Pass]:
    """What the ascend form alone does at the end."""
    return [PackInt4Weights(plan.layers, plan.quants), AbsorbCasts()]


def _deploy(plan: _Plan) -> list[Pass]:
    """What the ascend and the fake-quant form share."""
    layers, quants = plan.layers, plan.quants
    return [
        InsertQuant(layers, quants),
        InsertAntiQuants(plan.inputs),
        QuantizeWeights(layers, quants),
        QuantizeBiases(layers, quants),
        InsertDequant(layers, quants),
        QuantizeRecurrent(plan.recurrent, plan.recurrent_quants),
        MergeQuants(),
        RelaxClips(),
        DropDeadConstants(),
    ]
