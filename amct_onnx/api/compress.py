"""Quantize a model with data, or apply a plan without."""

from __future__ import annotations

import os
from collections.abc import Collection, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from onnx import ModelProto

from amct_onnx.analyse.algorithms import ActivationAlgorithm, WeightAlgorithm
from amct_onnx.analyse.engine import Calibration, Progress
from amct_onnx.analyse.options import PlanOptions
from amct_onnx.analyse.planner import make_plan
from amct_onnx.api.result import CompressionResult, LayerSummary, Report, TrialResult
from amct_onnx.api.trial import try_models
from amct_onnx.errors import RecordError, UsageError
from amct_onnx.graph import BuiltModel, digest, read_model
from amct_onnx.passes.base import PassTiming, Refusal
from amct_onnx.passes.insert_qdq import QdqTarget
from amct_onnx.passes.locate import locate_layers
from amct_onnx.record import LoadedRecord, Record, WeightState, load_record
from amct_onnx.rewrite import OutputForm, Prepared, prepare, rewrite
from amct_onnx.rewrite.quants import layer_quants, tensor_quant

ALL_FORMS = tuple(OutputForm)
Source = str | os.PathLike[str] | ModelProto


def quantize(
    model: Source,
    data: Any | Calibration,
    *,
    formats: Sequence[OutputForm | str] = ALL_FORMS,
    act: ActivationAlgorithm | str = ActivationAlgorithm.MSE,
    weights: WeightAlgorithm | str = WeightAlgorithm.MSE,
    skip: Collection[str] = (),
    symmetric: bool = False,
    qdq_target: QdqTarget | str = QdqTarget.ONNXRUNTIME,
    gemm_per_channel: bool | None = None,
    reduce_range: bool = False,
    trial: bool = True,
    progress: Progress | None = None,
) -> CompressionResult:
    """Quantize a model to int8.

    Args:
        model: path of an ONNX file, or a ModelProto (not changed). data: calibration feeds: an iterable of dicts by
        input name, of arrays for a model of one input, or of tuples in
            input order (labels after the last input are ignored); a torch DataLoader; or onnxruntime's
            CalibrationDataReader. Or the :class:`Calibration` of an earlier result or file, which needs no data.
        formats: which of ``ascend``, ``fake_quant``, ``qdq`` to make.
        act: how activation ranges are chosen: ``mse``, ``minmax``, ``ifmr`` or ``percentile``.
        weights: how weight scales are chosen: ``mse``, or ``arq`` (AMCT's symmetric min-max).
        skip: names of layers to leave float.
        symmetric: quantize activations without zero point (implied by the TensorRT target).
        qdq_target: ``onnxruntime`` or ``tensorrt``. gemm_per_channel: one weight scale per output channel for Gemm
        and MatMul; by default only when no Ascend model is
            asked for, since AMCT quantizes them per tensor.
        reduce_range: 7-bit weights, for x86 machines whose 8-bit kernels saturate.
        trial: run every runnable form beside the float model on the first feeds.
        progress: wraps the iterator of feeds, for a progress bar.

    Returns:
        Plan, models and report in memory; ``save(prefix)`` writes them.

    Raises:
        AmctError: see :mod:`amct_onnx.errors`.
    """
    forms, target = _forms(formats), _choice(QdqTarget, qdq_target, "qdq_target")
    per_channel = OutputForm.ASCEND not in forms if gemm_per_channel is None else gemm_per_channel
    options = PlanOptions(
        act=_choice(ActivationAlgorithm, act, "act"),
        weights=_choice(WeightAlgorithm, weights, "weights"),
        symmetric=symmetric or target is QdqTarget.TENSORRT,
        skip=tuple(skip),
        gemm_per_channel=per_channel,
        reduce_range=reduce_range,
        qdq_tensors=OutputForm.QDQ in forms,
    )
    proto, base_dir = read_model(model)
    prepared = prepare(proto, base_dir)
    plan = make_plan(prepared, data, options, sha256=digest(proto, base_dir), progress=progress)
    result = _rewrite_all(
        prepared, plan.record, plan.tensors, forms, target, refusals=plan.refusals, feeds=plan.calibration.feeds
    )
    trials = try_models(proto, base_dir, result.models, plan.calibration.samples) if trial else ()
    return replace(_finished(result, model, trials=trials), calibration=plan.calibration)


def apply(
    model: Source,
    record: str | os.PathLike[str] | Record | LoadedRecord,
    *,
    tensors: str | os.PathLike[str] | Record | LoadedRecord | None = None,
    formats: Sequence[OutputForm | str] = ALL_FORMS,
    qdq_target: QdqTarget | str = QdqTarget.ONNXRUNTIME,
    strict: bool = False,
) -> CompressionResult:
    """Rewrite a model as a plan says; needs no data.

    Args:
        model: the model the plan was made for: a path or a ModelProto (not changed).
        record: path of the record file, or a record.
        tensors: path of the tensors file, or its content; by default the file ``*_tensors.txt`` beside a record file
            named ``*_record.txt``, where there is one.
        formats: which of ``ascend``, ``fake_quant``, ``qdq`` to make.
        qdq_target: ``onnxruntime`` or ``tensorrt``.
        strict: warnings about the files are errors.

    Raises:
        RecordError: a file cannot be read, breaks a rule, or does not belong to the model.
    """
    forms, target = _forms(formats), _choice(QdqTarget, qdq_target, "qdq_target")
    loaded = record if isinstance(record, Record | LoadedRecord) else load_record(record, strict=strict)
    extra = _load_tensors(record, tensors, strict=strict)
    proto, base_dir = read_model(model)
    plain = _plain(loaded)
    notes = _check_belongs(plain, proto, base_dir)
    skip_fusion = [name for name, entry in plain.layers.items() if entry.skip_fusion]
    prepared = prepare(proto, base_dir, skip_fusion=skip_fusion)
    if extra is None and OutputForm.QDQ in forms:
        notes.append(
            "no tensors file was given: only layer inputs are quantized in the QDQ model, so most layers run in float"
        )
    result = _rewrite_all(prepared, loaded, _plain(extra) if extra else Record(), forms, target, notes=notes)
    return _finished(result, model)


def _rewrite_all(
    prepared: Prepared,
    record: Record | LoadedRecord,
    tensors: Record,
    forms: Sequence[OutputForm],
    target: QdqTarget,
    *,
    refusals: Sequence[Refusal] | None = None,
    feeds: int = 0,
    notes: Sequence[str] = (),
) -> CompressionResult:
    quants, findings = layer_quants(prepared.model, record)
    plain = _plain(record)
    pairs = {name: tensor_quant(entry) for name, entry in tensors.layers.items()}
    models: dict[OutputForm, BuiltModel] = {}
    timings: dict[str, tuple[PassTiming, ...]] = {"prepare": prepared.timings}
    for form in forms:
        models[form], seconds = rewrite(prepared, quants, form, pairs=pairs, target=target)
        timings[form.value] = tuple(seconds)
    survey = locate_layers(prepared.model)
    summaries = tuple(
        LayerSummary(
            layer.name,
            layer.op_type,
            prepared.fused.get(layer.name, (layer.name,)),
            quants[layer.name].data.scale,
            quants[layer.name].data.offset,
            int(quants[layer.name].weight_scale.size),
        )
        for layer in survey.layers
        if layer.name in quants
    )
    if refusals is None:
        unplanned = [
            Refusal(layer.name, layer.op_type, "the record has no entry for it")
            for layer in survey.layers
            if layer.name not in quants
        ]
        refusals = [*survey.refusals, *unplanned]
    report = Report(
        layers=summaries,
        refusals=(*refusals, *prepared.refusals),
        feeds=feeds,
        qdq_tensors=len(pairs) if OutputForm.QDQ in forms else 0,
        notes=(*notes, *(str(finding) for finding in findings)),
        timings=timings,
    )
    return CompressionResult(plain, tensors, models, report)


def _finished(result: CompressionResult, model: Source, *, trials: Sequence[TrialResult] = ()) -> CompressionResult:
    source = None if isinstance(model, ModelProto) else Path(model)
    return replace(result, source=source, report=replace(result.report, trials=tuple(trials)))


def _check_belongs(record: Record, proto: ModelProto, base_dir: Path | None) -> list[str]:
    """Refuse a record that was made for another model; return notes about one that cannot tell."""
    header = record.header
    if header is None:
        return ["the record carries no header of ours: its weights are taken as recomputable from this model"]
    if header.weights is WeightState.MODIFIED:
        raise RecordError(
            "the record says its weights were modified; apply it to the *_modified_model.onnx written beside it"
        )
    if header.source_sha256 is not None and header.source_sha256 != digest(proto, base_dir):
        raise RecordError(
            "the record was made for another model (its source sha256 differs); apply it to the model it was made "
            "from, or delete the '# source sha256' line if the change does not matter"
        )
    return []


def _load_tensors(
    record: object, tensors: str | os.PathLike[str] | Record | LoadedRecord | None, *, strict: bool
) -> Record | LoadedRecord | None:
    if tensors is None and isinstance(record, str | os.PathLike):
        path = Path(record)
        sibling = path.with_name(path.name.removesuffix("_record.txt") + "_tensors.txt")
        if path.name.endswith("_record.txt") and sibling.exists():
            tensors = sibling
    if isinstance(tensors, str | os.PathLike):
        return load_record(tensors, strict=strict)
    return tensors


def _plain(record: Record | LoadedRecord) -> Record:
    return record.record if isinstance(record, LoadedRecord) else record


def _forms(formats: Sequence[OutputForm | str]) -> tuple[OutputForm, ...]:
    given = [formats] if isinstance(formats, str | OutputForm) else list(formats)
    forms = tuple(dict.fromkeys(_choice(OutputForm, form, "formats") for form in given))
    if not forms:
        raise UsageError("formats is empty; name at least one of ascend, fake_quant, qdq")
    return forms


def _choice(kind: Any, value: Any, name: str) -> Any:
    try:
        return kind(value)
    except ValueError as error:
        known = ", ".join(member.value for member in kind)
        raise UsageError(f"{name}: '{value}' is unknown; choose from {known}") from error
