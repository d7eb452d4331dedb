"""From a plan to a result: every form rewritten, and the report of what was done and what was not."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from amct_onnx.api.deploy_check import check_built
from amct_onnx.api.result import CompressionResult, InputSummary, LayerSummary, Report
from amct_onnx.errors import RecordError
from amct_onnx.passes.base import PassTiming, Refusal
from amct_onnx.passes.input_sites import InputSites
from amct_onnx.passes.insert_qdq import QdqTarget
from amct_onnx.passes.locate import Layer, Survey, locate_layers
from amct_onnx.passes.quant_params import LayerQuant, RecurrentQuant, TensorQuant
from amct_onnx.passes.recurrent import RecurrentLayer, ascend_obstacle
from amct_onnx.record import LoadedRecord, Record
from amct_onnx.rewrite import OutputForm, Prepared, rewrite_all
from amct_onnx.rewrite.forms import body_result_quants, qdq_obstacle
from amct_onnx.rewrite.quants import record_quants, shared_input_notes, tensor_quants
from amct_onnx.wording import counted


def assemble(
    prepared: Prepared,
    record: Record | LoadedRecord,
    tensors: Record | LoadedRecord,
    forms: Sequence[OutputForm],
    target: QdqTarget,
    *,
    refusals: Sequence[Refusal] | None = None,
    feeds: int = 0,
    notes: Sequence[str] = (),
    strict: bool = False,
    by_config: bool = False,
    qdq_recurrent: bool = False,
) -> CompressionResult:
    """Rewrite a prepared model by a plan.

    Args:
        prepared: the model; not changed.
        record: the plan of the layers.
        tensors: the plan of what only the QDQ form quantizes.
        forms: what to make.
        target: runtime of the QDQ form.
        refusals: what planning left float; None to find out from the record.
        feeds: number of calibration feeds, for the report.
        notes: what the report should say besides.
        strict: warnings about the plan are errors.
        by_config: a config says how each weight is quantized.
        qdq_recurrent: quantize recurrent layers in the QDQ form, too.

    Raises:
        RecordError: the plan does not fit the model.
    """
    symmetric_only = target is QdqTarget.TENSORRT
    said = record_quants(prepared, record, tensors=tensors, symmetric_only=symmetric_only, strict=strict)
    quants = said.layers
    pairs, more = tensor_quants(prepared.model, tensors, quants, symmetric_only=symmetric_only, strict=strict)
    survey = locate_layers(prepared.model, products=quants)
    if OutputForm.ASCEND in forms:
        _refuse_unfit(survey, said.recurrent)
    rewritten = rewrite_all(
        prepared,
        quants,
        forms,
        pairs=pairs,
        inputs=said.inputs,
        recurrent=said.recurrent,
        target=target,
        qdq_recurrent=qdq_recurrent,
    )
    timings: dict[str, tuple[PassTiming, ...]] = {"prepare": prepared.timings}
    timings.update({form.value: tuple(seconds) for form, (_, seconds) in rewritten.items()})
    warnings = [*map(str, said.findings), *(_in_file(tensors, str(finding)) for finding in more)]
    models = {form: built for form, (built, _) in rewritten.items()}
    recurrent_notes = _recurrent_notes(said.recurrent, forms, qdq_recurrent=qdq_recurrent)
    report = Report(
        layers=_summaries(prepared, survey, {**quants, **said.recurrent}),
        inputs=_input_summaries(prepared, said.inputs),
        refusals=(
            *(_unplanned(survey, {**quants, **said.recurrent}) if refusals is None else refusals),
            *prepared.refusals,
        ),
        feeds=feeds,
        qdq_tensors=len(pairs) if OutputForm.QDQ in forms else 0,
        notes=(
            *notes,
            *warnings,
            *_notes(prepared, survey, quants, pairs, forms, by_config=by_config, has_recurrent=bool(said.recurrent)),
            *recurrent_notes,
        ),
        deploy=check_built(models[OutputForm.ASCEND]) if OutputForm.ASCEND in models else (),
        timings=timings,
    )
    return CompressionResult(plain_record(record), plain_record(tensors), models, report)


def plain_record(record: Record | LoadedRecord) -> Record:
    """The record without where it was read from."""
    return record.record if isinstance(record, LoadedRecord) else record


def _in_file(tensors: Record | LoadedRecord, warning: str) -> str:
    """A warning about the tensors file says so, for its lines are not the record's."""
    return f"{tensors.source}: {warning}" if isinstance(tensors, LoadedRecord) else warning


def _summaries(
    prepared: Prepared, survey: Survey, quants: Mapping[str, LayerQuant | RecurrentQuant]
) -> tuple[LayerSummary, ...]:
    def summary(layer: Layer | RecurrentLayer, quant: LayerQuant | RecurrentQuant) -> LayerSummary:
        is_product = isinstance(quant, LayerQuant) and quant.second is not None
        return LayerSummary(
            layer.name,
            layer.op_type,
            prepared.fused.get(layer.name, (layer.name,)),
            quant.data.scale,
            quant.data.offset,
            int(quant.weight_scale.size),
            quant.weight_scale.item() if is_product else None,
        )

    return tuple(summary(layer, quants[layer.name]) for layer in survey.all_layers if layer.name in quants)


def _refuse_unfit(survey: Survey, quants: Mapping[str, RecurrentQuant]) -> None:
    """Recurrent layers that the record quantizes must be such that an Ascend operator can stand for them.

    Raises:
        RecordError: one is not.
    """
    for layer in survey.recurrent:
        obstacle = ascend_obstacle(layer) if layer.name in quants else None
        if obstacle is not None:
            raise RecordError(f"layer '{layer.name}': {obstacle[0]}; delete its entry, or leave out the ascend form")


def _recurrent_notes(
    quants: Mapping[str, RecurrentQuant], forms: Sequence[OutputForm], *, qdq_recurrent: bool
) -> tuple[str, ...]:
    stay = [name for name, quant in quants.items() if not qdq_recurrent or quant.data.bits > 8]
    if OutputForm.QDQ not in forms or not stay:
        return ()
    reason = (
        "it has no pairs of 16 bits"
        if qdq_recurrent
        else ("no runtime has integer kernels for them; --qdq-recurrent quantizes them for size")
    )
    return (f"{_these(stay, 'recurrent layer', 'stays', 'stay')} float in the QDQ model, since {reason}",)


def _input_summaries(prepared: Prepared, inputs: Mapping[str, TensorQuant]) -> tuple[InputSummary, ...]:
    return tuple(
        InputSummary(
            site.node.name, site.index, site.node.op, site.tensor.name, inputs[site.key].scale, inputs[site.key].offset
        )
        for site in InputSites(prepared.model, ()).at(inputs)
    )


def _unplanned(survey: Survey, quants: Collection[str]) -> list[Refusal]:
    left = [layer for layer in survey.all_layers if layer.name not in quants]
    return [
        *survey.refusals,
        *(Refusal(layer.name, layer.op_type, "the record does not quantize it") for layer in left),
    ]


def _float_in_qdq(
    prepared: Prepared, survey: Survey, quants: Mapping[str, LayerQuant], pairs: Mapping[str, TensorQuant]
) -> list[str]:
    """What the QDQ form leaves float of the quantized layers, one note per reason."""
    layers = [layer for layer in survey.layers if layer.name in quants and layer.second is None]
    of_bodies = body_result_quants(prepared.model, layers, quants, pairs)
    names: dict[str, list[str]] = {}
    for layer in layers:
        obstacle = qdq_obstacle(layer, quants[layer.name], of_bodies)
        if obstacle is not None:
            names.setdefault(obstacle, []).append(layer.name)
    return [
        f"{_these(found, 'layer', 'stays', 'stay')} float in the QDQ model: {reason}" for reason, found in names.items()
    ]


def _these(names: Sequence[str], thing: str, one: str, more: str) -> str:
    """``3 layers, like 'a', have``, or ``1 layer, 'a', has``: of the verbs the one that fits."""
    like, verb = ("", one) if len(names) == 1 else ("like ", more)
    return f"{counted(len(names), thing)}, {like}'{names[0]}', {verb}"


def _notes(
    prepared: Prepared,
    survey: Survey,
    quants: Mapping[str, LayerQuant],
    pairs: Mapping[str, TensorQuant],
    forms: Sequence[OutputForm],
    *,
    by_config: bool,
    has_recurrent: bool,
) -> list[str]:
    """What a user should know about this plan in these forms."""
    notes: list[str] = []
    if not quants and not has_recurrent:
        notes.append("the record quantizes no layer")
    if OutputForm.QDQ in forms:
        notes += shared_input_notes(prepared.model, quants)
        notes += _float_in_qdq(prepared, survey, quants, pairs)
    if OutputForm.QDQ in forms and OutputForm.ASCEND in forms and not by_config:
        narrow = [
            layer.name
            for layer in survey.layers
            if layer.name in quants and layer.weight is not None and not layer.spec.per_channel
            if quants[layer.name].weight_scale.size == 1 and (layer.channels_out or 1) > 1
        ]
        if narrow:
            notes.append(
                f"{_these(narrow, 'Gemm or MatMul layer', 'has', 'have')} one weight scale because the "
                "ascend form is asked for; a QDQ model made with --format qdq alone gets one per output channel and is "
                "more accurate"
            )
    if OutputForm.ASCEND in forms:
        wide = [
            layer.name
            for layer in survey.layers
            if layer.name in quants and not layer.spec.per_channel and quants[layer.name].weight_scale.size > 1
        ]
        if wide:
            notes.append(
                f"{_these(wide, 'Gemm or MatMul layer', 'has', 'have')} a weight scale per output channel, "
                "which AMCT's own tools do not write; without --gemm-per-channel the ascend form gets one"
            )
    return notes
