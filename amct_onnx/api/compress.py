"""Quantize a model with data, or apply a plan without."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from onnx import ModelProto

from amct_onnx.analyse.balance import balance_notes, choose_balance
from amct_onnx.analyse.configurable import plan_options
from amct_onnx.analyse.engine import Calibration
from amct_onnx.analyse.feed_files import find_feeds
from amct_onnx.analyse.options import PlanOptions
from amct_onnx.analyse.planner import Plan, check_names, make_plan
from amct_onnx.analyse.walk import Progress
from amct_onnx.api.assemble import assemble, plain_record
from amct_onnx.api.belonging import check_belongs
from amct_onnx.api.configured import (
    ConfigSource,
    check_feeds,
    config_notes,
    configure,
    feed_notes,
    refuse_beside_config,
)
from amct_onnx.api.result import CompressionResult
from amct_onnx.api.source import Source, blaming_illegal_models, load_source, refuse_compressed, source_files
from amct_onnx.api.structure import is_to_restore, quantization_part, restored
from amct_onnx.api.trial import try_models
from amct_onnx.config import (
    ActivationAlgorithm,
    ActivationOptions,
    LayerOptions,
    QuantConfig,
    WeightAlgorithm,
    WeightOptions,
)
from amct_onnx.errors import ArgumentError, RecordError
from amct_onnx.graph import BuiltModel, digest
from amct_onnx.graph.op_table import spec_of
from amct_onnx.passes.balance import Factors
from amct_onnx.passes.base import SKIPPED
from amct_onnx.passes.insert_qdq import QdqTarget
from amct_onnx.record import LoadedRecord, Record, RecordHeader, load_record
from amct_onnx.rewrite import OutputForm, Prepared, prepare
from amct_onnx.rewrite.quants import prepare_for
from amct_onnx.stopwatch import Stopwatch

ALL_FORMS = tuple(OutputForm)
_UNTRIED = "no model was tried: statistics hold no feeds to run; calibrate with data to see what the models compute"


def quantize(
    model: Source,
    data: Any | Calibration,
    *,
    formats: Sequence[OutputForm | str] = ALL_FORMS,
    config: ConfigSource | None = None,
    act: ActivationAlgorithm | str | None = None,
    weights: WeightAlgorithm | str | None = None,
    skip: Collection[str] = (),
    skip_fusion: Collection[str] = (),
    do_fusion: bool = True,
    symmetric: bool = False,
    qdq_target: QdqTarget | str = QdqTarget.ONNXRUNTIME,
    qdq_recurrent: bool = False,
    gemm_per_channel: bool | None = None,
    reduce_range: bool = False,
    matmul_inputs: bool = False,
    dmq: float | None = None,
    trial: bool = True,
    progress: Progress | None = None,
) -> CompressionResult:
    """Quantize a model to int8.

    Args:
        model: path of an ONNX file, or a ModelProto (not changed).
        data: calibration feeds: a path as the command line takes it (a ``.npz``, a ``.npy``, or a folder of them); an
            iterable of dicts by input name, of arrays for a model of one input, or of tuples in input order (labels
            after the last input are ignored); a torch DataLoader; or onnxruntime's CalibrationDataReader. Or the
            :class:`Calibration` of an earlier result or file, which needs no data.
        formats: which of ``ascend``, ``fake_quant``, ``qdq`` to make.
        config: path of an AMCT config (simple .cfg or JSON), or one resolved for this model by
            :func:`resolve_config`; takes the place of ``act``, ``weights``, ``skip``, ``skip_fusion``, ``do_fusion``,
            ``symmetric``, ``gemm_per_channel`` and ``dmq``. Of the data its ``batch_num`` feeds are used.
        act: how activation ranges are chosen: ``mse`` (the default), ``minmax``, ``ifmr``, ``hfmg`` or ``percentile``.
        weights: how weight scales are chosen: ``mse`` (the default), or ``arq`` (AMCT's symmetric min-max).
        skip: names of layers to leave float.
        skip_fusion: names of layers that take no other node in, and of nodes that are taken into none; the plan says so
            as well.
        do_fusion: False leaves every node by itself.
        symmetric: quantize activations without zero point (implied by the TensorRT target).
        qdq_target: ``onnxruntime`` or ``tensorrt``.
        qdq_recurrent: quantize LSTM, GRU and RNN in the QDQ form, too: a smaller file, not a faster model.
        gemm_per_channel: one weight scale per output channel for Gemm and MatMul; by default only when no Ascend
            model is asked for, since AMCT quantizes them per tensor.
        reduce_range: 7-bit weights, for x86 machines whose 8-bit kernels saturate.
        matmul_inputs: quantize products of two computed tensors (attention) in the Ascend and fake-quant forms, too:
            both inputs, without zero points. The QDQ form quantizes them anyway.
        dmq: balance every layer that has weights with this migration strength, 0.2 to 0.8 (DMQ, like SmoothQuant):
            spread between input channels moves from activations to weights. Walks over the data twice.
        trial: run every runnable form beside the float model on the first feeds.
        progress: wraps the iterator of feeds, for a progress bar.

    Returns:
        Plan, models and report in memory; ``save(prefix)`` writes them.

    Raises:
        AmctError: see :mod:`amct_onnx.errors`.
    """
    forms, target = as_forms(formats), as_target(qdq_target, formats)
    choices = _Choices(
        act=_choice(ActivationAlgorithm, act or ActivationAlgorithm.MSE, "act"),
        weights=_choice(WeightAlgorithm, weights or WeightAlgorithm.MSE, "weights"),
        skip=(skip,) if isinstance(skip, str) else tuple(skip),
        symmetric=symmetric,
        gemm_per_channel=gemm_per_channel,
        dmq=_strength(dmq),
        skip_fusion=(skip_fusion,) if isinstance(skip_fusion, str) else tuple(skip_fusion),
        do_fusion=do_fusion,
        reduce_range=reduce_range,
        matmul_inputs=matmul_inputs,
    )
    if config is not None:
        refuse_beside_config({"act": act, "weights": weights, **choices.flags()})
    if isinstance(data, str | os.PathLike):
        data = find_feeds(Path(data))
    proto, base_dir = load_source(model)
    refuse_compressed(proto)
    result = _quantized(
        proto,
        base_dir,
        data,
        config,
        choices,
        forms,
        target,
        qdq_recurrent=qdq_recurrent,
        trial=trial,
        progress=progress,
    )
    return replace(result, source=source_files(model, proto, base_dir))


def quantize_read(
    proto: ModelProto,
    base_dir: Path | None,
    data: Any,
    *,
    config: QuantConfig,
    forms: Collection[OutputForm],
    target: QdqTarget,
    progress: Progress | None,
) -> CompressionResult:
    """:func:`quantize` by a config, for a model that was read or made before; nothing is tried, no files are noted.

    Args:
        proto: the float model; not changed.
        base_dir: folder of its external weights.
        data: feeds that can be walked.
        config: the config, resolved for the model.
        forms: what to make.
        target: runtime of the QDQ form.
        progress: wraps the iterator of feeds.
    """
    return _quantized(
        proto, base_dir, data, config, _Choices(), forms, target, qdq_recurrent=False, trial=False, progress=progress
    )


def _quantized(
    proto: ModelProto,
    base_dir: Path | None,
    data: Any | Calibration,
    config: ConfigSource | None,
    choices: _Choices,
    forms: Collection[OutputForm],
    target: QdqTarget,
    *,
    qdq_recurrent: bool,
    trial: bool,
    progress: Progress | None,
) -> CompressionResult:
    """Plan, rewrite, try out."""
    watch = Stopwatch()
    with blaming_illegal_models(proto, base_dir):
        prepared, options, notes = _planning(proto, base_dir, data, config, choices, forms, target)
        options = replace(
            options,
            reduce_range=choices.reduce_range,
            matmul_inputs=choices.matmul_inputs,
            qdq_tensors=OutputForm.QDQ in forms,
            for_ascend=OutputForm.ASCEND in forms,
        )
        watch.lap("preparing")
        factors = choose_balance(prepared, options, data, progress=progress)
        watch.lap("balancing")
        sha256 = digest(proto, base_dir)

        def planned(model: Prepared) -> Plan:
            return make_plan(model, data, options, sha256=sha256, progress=progress)

        prepared, plan = _balanced_plan(prepared, factors, planned)
        watch.lap("planning")
        result = assemble(
            prepared,
            plan.record,
            plan.tensors,
            tuple(forms),
            target,
            refusals=plan.refusals,
            feeds=plan.calibration.feeds,
            notes=(*notes, *balance_notes(prepared, options), *feed_notes(data, options.feeds)),
            by_config=config is not None,
            qdq_recurrent=qdq_recurrent,
        )
    watch.lap("rewriting")
    timed = {OutputForm.QDQ} if target is QdqTarget.ONNXRUNTIME else set()
    samples = plan.calibration.samples if trial else ()
    trials = try_models(proto, base_dir, result.models, samples, timed=timed)
    watch.lap("trying")
    untried = trial and not plan.calibration.samples
    del watch.seconds["planning"]
    report = replace(
        result.report,
        trials=trials,
        notes=(*result.report.notes, *([_UNTRIED] if untried else [])),
        seconds={**watch.seconds, **plan.seconds},
    )
    return replace(result, calibration=plan.calibration, report=report)


def _balanced_plan(
    prepared: Prepared, factors: Mapping[str, Factors], planned: Callable[[Prepared], Plan]
) -> tuple[Prepared, Plan]:
    """The model balanced for layers that are quantized and no others, and its plan, which is all that says so."""
    balanced = prepared.balanced(factors)
    plan = planned(balanced)
    while float_layers := factors.keys() - plan.record.layers.keys():
        factors = {name: values for name, values in factors.items() if name not in float_layers}
        balanced = prepared.balanced(factors)
        plan = planned(balanced)
    return balanced, plan


@dataclass(frozen=True, kw_only=True)
class _Choices:
    """What arguments say of all layers alike."""

    act: ActivationAlgorithm = ActivationAlgorithm.MSE
    weights: WeightAlgorithm = WeightAlgorithm.MSE
    skip: tuple[str, ...] = ()
    symmetric: bool = False
    gemm_per_channel: bool | None = None
    dmq: float | None = None
    skip_fusion: tuple[str, ...] = ()
    do_fusion: bool = True
    reduce_range: bool = False
    matmul_inputs: bool = False

    def flags(self) -> dict[str, object]:
        """Those that a config decides, and whether they were given."""
        names = ("skip", "symmetric", "gemm_per_channel", "dmq", "skip_fusion")
        return {**{name: getattr(self, name) for name in names}, "do_fusion": not self.do_fusion}


def _planning(
    proto: ModelProto,
    base_dir: Path | None,
    data: Any | Calibration,
    config: ConfigSource | None,
    choices: _Choices,
    forms: Collection[OutputForm],
    target: QdqTarget,
) -> tuple[Prepared, PlanOptions, tuple[str, ...]]:
    """The model made ready, the choices for its plan, and what the report should say of them."""
    symmetric = target is QdqTarget.TENSORRT
    if config is not None:
        configured = configure(proto, base_dir, config)
        check_feeds(data, configured.config)
        options = plan_options(configured.config, symmetric=symmetric)
        return configured.prepared, options, config_notes(configured.config)
    wanted = choices.gemm_per_channel
    options = PlanOptions(
        default=LayerOptions(
            activation=ActivationOptions(algorithm=choices.act, symmetric=choices.symmetric or symmetric),
            weight=WeightOptions(algorithm=choices.weights),
            migration_strength=choices.dmq,
        ),
        skip=dict.fromkeys(choices.skip, SKIPPED),
        gemm_per_channel=OutputForm.ASCEND not in forms if wanted is None else wanted,
    )
    prepared = prepare(proto, base_dir, skip_fusion=choices.skip_fusion, do_fusion=choices.do_fusion)
    check_names(prepared.model, choices.skip_fusion, "skip_fusion")
    return prepared, options, _idle_skips(prepared, choices.skip)


def _idle_skips(prepared: Prepared, skip: Collection[str]) -> tuple[str, ...]:
    """A note where nodes to skip are of types that are not quantized anyway."""
    given = set(skip)
    nodes = (node for graph in prepared.model.graphs() for node in graph.nodes)
    idle = [f"'{node.name}' ({node.op})" for node in nodes if node.name in given and not spec_of(node).has_record]
    if not idle:
        return ()
    return (f"skipping {', '.join(idle)} changes nothing: only layers are skipped, as inspect lists them",)


_NO_TENSORS = "no tensors file was given (--tensors, by default *_tensors.txt beside the record)"
_EMPTY_TENSORS = "the tensors file names no tensor"
_INPUTS_ALONE = "only layer inputs are quantized in the QDQ model, so most layers run in float"


def apply(
    model: Source,
    record: str | os.PathLike[str] | Record | LoadedRecord,
    *,
    tensors: str | os.PathLike[str] | Record | LoadedRecord | None = None,
    formats: Sequence[OutputForm | str] = ALL_FORMS,
    qdq_target: QdqTarget | str = QdqTarget.ONNXRUNTIME,
    qdq_recurrent: bool = False,
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
        qdq_recurrent: quantize LSTM, GRU and RNN in the QDQ form, too: a smaller file, not a faster model.
        strict: warnings about the files are errors.

    Raises:
        RecordError: a file cannot be read, breaks a rule, or does not belong to the model.
    """
    forms, target = as_forms(formats), as_target(qdq_target, formats)
    if isinstance(record, str | os.PathLike) and is_tensors_file(record):
        raise RecordError(f"{os.fspath(record)}: this is a tensors file; give the *_record.txt beside it as the record")
    loaded = record if isinstance(record, Record | LoadedRecord) else load_record(record, strict=strict)
    plain = plain_record(loaded)
    given, base_dir = load_source(model)
    notes = check_belongs(loaded, given, base_dir)
    files = source_files(model, given, base_dir)
    proto, modified = given, None
    if is_to_restore(plain, given, base_dir):
        # What is quantized is the source without the channels and weights that the record takes out.
        modified = restored(model, loaded)
        proto, base_dir = modified.to_source()
    extra = _load_tensors(record, tensors, strict=strict)
    if extra is None or not plain_record(extra).layers:
        if OutputForm.QDQ in forms:
            notes.append(f"{_NO_TENSORS if extra is None else _EMPTY_TENSORS}: {_INPUTS_ALONE}")
        extra = Record(header=plain.header or RecordHeader())
    elif plain_record(extra).header is not None:
        check_belongs(extra, proto, base_dir, what="tensors file")
    with blaming_illegal_models(proto, base_dir):
        plan = quantization_part(loaded)
        prepared = prepare_for(plan, proto, base_dir)
        result = assemble(prepared, plan, extra, forms, target, notes=notes, strict=strict, qdq_recurrent=qdq_recurrent)
    models = result.models if modified is None else stored_like(result.models, modified)
    return replace(result, record=plain, source=files, modified=modified, models=models)


def stored_like(models: Mapping[OutputForm, BuiltModel], earlier: BuiltModel) -> dict[OutputForm, BuiltModel]:
    """Forms of a model that was made in several steps, which stay external where an earlier one of them is."""
    return {form: built.stored_like(earlier) for form, built in models.items()}


def _load_tensors(
    record: object, tensors: str | os.PathLike[str] | Record | LoadedRecord | None, *, strict: bool
) -> Record | LoadedRecord | None:
    if tensors is None and isinstance(record, str | os.PathLike):
        sibling = sibling_tensors(Path(record))
        tensors = sibling if sibling is not None and sibling.exists() else None
    if isinstance(tensors, str | os.PathLike):
        return load_record(tensors, strict=strict)
    return tensors


def is_tensors_file(path: str | os.PathLike[str]) -> bool:
    """Whether a file's name says that it is keyed by tensor."""
    return os.fspath(path).endswith("_tensors.txt")


def sibling_tensors(record: Path) -> Path | None:
    """The tensors file that belongs to a record file by its name, whether it exists or not."""
    if not record.name.endswith("_record.txt"):
        return None
    return record.with_name(record.name.removesuffix("_record.txt") + "_tensors.txt")


def _strength(dmq: float | None) -> float | None:
    if dmq is not None and not 0.2 <= dmq <= 0.8:
        raise ArgumentError("{dmq} is {value}; a migration strength lies from 0.2 to 0.8, 0.5 is usual", value=dmq)
    return dmq


def as_forms(formats: Sequence[OutputForm | str]) -> tuple[OutputForm, ...]:
    """The output forms that are named; raises :class:`UsageError` where one is unknown, or there is none."""
    given = [formats] if isinstance(formats, str | OutputForm) else list(formats)
    forms = tuple(dict.fromkeys(_choice(OutputForm, form, "formats") for form in given))
    if not forms:
        raise ArgumentError("{formats} is empty; name at least one of ascend, fake_quant, qdq")
    return forms


def as_target(qdq_target: QdqTarget | str, formats: Sequence[OutputForm | str]) -> QdqTarget:
    """The runtime that is named; raises :class:`UsageError` where it is unknown, or without meaning for the forms."""
    target: QdqTarget = _choice(QdqTarget, qdq_target, "qdq_target")
    if target is not QdqTarget.ONNXRUNTIME and OutputForm.QDQ not in as_forms(formats):
        raise ArgumentError(
            "{qdq_target} is '{value}', but {formats} does not name qdq; add it, or leave {qdq_target} out",
            value=target.value,
        )
    return target


def _choice(kind: Any, value: Any, name: str) -> Any:
    try:
        return kind(value)
    except ValueError as error:
        known = ", ".join(member.value for member in kind)
        raise ArgumentError(f"{{{name}}}: '{{value}}' is unknown; choose from {known}", value=value) from error
