"""From a plan to a result: every form rewritten, and the report of what was done and what was not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from amct_onnx.api.deploy_check import check_built
from amct_onnx.api.result import CompressionResult, InputSummary, LayerSummary, Report
from amct_onnx.passes.base import PassTiming, Refusal
from amct_onnx.passes.input_sites import InputSites
from amct_onnx.passes.insert_qdq import QdqTarget
from amct_onnx.passes.locate import Survey, locate_layers
from amct_onnx.passes.qdq_placement import runs_on_integers
from amct_onnx.passes.quant_params import LayerQuant, TensorQuant
from amct_onnx.record import LoadedRecord, Record
from amct_onnx.rewrite import OutputForm, Prepared, rewrite_all
from amct_onnx.rewrite.quants import record_quants, shared_input_notes, tensor_quants


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

    Raises:
        RecordError: the plan does not fit the model.
    """
    symmetric_only = target is QdqTarget.TENSORRT
    said = record_quants(prepared, record, tensors=tensors, symmetric_only=symmetric_only, strict=strict)
    quants = said.layers
    pairs, more = tensor_quants(prepared.model, tensors, quants, symmetric_only=symmetric_only, strict=strict)
    rewritten = rewrite_all(prepared, quants, forms, pairs=pairs, inputs=said.inputs, target=target)
    timings: dict[str, tuple[PassTiming, ...]] = {"prepare": prepared.timings}
    timings.update({form.value: tuple(seconds) for form, (_, seconds) in rewritten.items()})
    survey = locate_layers(prepared.model, products=quants)
    warnings = [*map(str, said.findings), *(_in_file(tensors, str(finding)) for finding in more)]
    models = {form: built for form, (built, _) in rewritten.items()}
    report = Report(
        layers=_summaries(prepared, survey, quants),
        inputs=_input_summaries(prepared, said.inputs),
        refusals=(*(_unplanned(survey, quants) if refusals is None else refusals), *prepared.refusals),
        feeds=feeds,
        qdq_tensors=len(pairs) if OutputForm.QDQ in forms else 0,
        notes=(*notes, *warnings, *_notes(prepared, survey, quants, forms, by_config=by_config)),
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


def _summaries(prepared: Prepared, survey: Survey, quants: Mapping[str, LayerQuant]) -> tuple[LayerSummary, ...]:
    return tuple(
        LayerSummary(
            layer.name,
            layer.op_type,
            prepared.fused.get(layer.name, (layer.name,)),
            quants[layer.name].data.scale,
            quants[layer.name].data.offset,
            int(quants[layer.name].weight_scale.size),
            None if quants[layer.name].second is None else quants[layer.name].weight_scale.item(),
        )
        for layer in survey.layers
        if layer.name in quants
    )


def _input_summaries(prepared: Prepared, inputs: Mapping[str, TensorQuant]) -> tuple[InputSummary, ...]:
    return tuple(
        InputSummary(
            site.node.name, site.index, site.node.op, site.tensor.name, inputs[site.key].scale, inputs[site.key].offset
        )
        for site in InputSites(prepared.model, ()).at(inputs)
    )


def _unplanned(survey: Survey, quants: Mapping[str, LayerQuant]) -> list[Refusal]:
    left = [layer for layer in survey.layers if layer.name not in quants]
    return [
        *survey.refusals,
        *(Refusal(layer.name, layer.op_type, "the record does not quantize it") for layer in left),
    ]


def _notes(
    prepared: Prepared,
    survey: Survey,
    quants: Mapping[str, LayerQuant],
    forms: Sequence[OutputForm],
    *,
    by_config: bool,
) -> list[str]:
    """What a user should know about this plan in these forms."""
    notes: list[str] = []
    if not quants:
        notes.append("the record quantizes no layer")
    if OutputForm.QDQ in forms:
        notes += shared_input_notes(prepared.model, quants)
        floats = [
            layer.name
            for layer in survey.layers
            if layer.name in quants and not runs_on_integers(layer, quants[layer.name].data.bits)
        ]
        if floats:
            notes.append(
                f"{len(floats)} layers, like '{floats[0]}', stay float in the QDQ model: transposed convolutions and "
                "16-bit activations have no integer kernels there, and bodies of control flow are left alone"
            )
    if OutputForm.QDQ in forms and OutputForm.ASCEND in forms and not by_config:
        narrow = [
            layer.name
            for layer in survey.layers
            if layer.name in quants and layer.weight is not None and not layer.spec.per_channel
            if quants[layer.name].weight_scale.size == 1 and (layer.channels_out or 1) > 1
        ]
        if narrow:
            notes.append(
                f"{len(narrow)} Gemm or MatMul layers have one weight scale because the ascend form is asked for; a "
                "QDQ model made with --format qdq alone gets one per output channel and is more accurate"
            )
    if OutputForm.ASCEND in forms:
        wide = [
            layer.name
            for layer in survey.layers
            if layer.name in quants and not layer.spec.per_channel and quants[layer.name].weight_scale.size > 1
        ]
        if wide:
            notes.append(
                f"{len(wide)} Gemm or MatMul layers, like '{wide[0]}', have a weight scale per output channel, which "
                "AMCT's own tools do not write; without --gemm-per-channel the ascend form gets one"
            )
    return notes
