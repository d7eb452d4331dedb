"""Thin out a model 4:2: of every four weights along the input channels two become zero."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from onnx import ModelProto

from amct_onnx.analyse.fitting.data import FittingData
from amct_onnx.analyse.sparsity.choose import choose_layers
from amct_onnx.analyse.sparsity.options import Selection, SparsityGoal
from amct_onnx.analyse.walk import Progress
from amct_onnx.api.assemble import plain_record
from amct_onnx.api.belonging import check_belongs
from amct_onnx.api.configured import refuse_beside_config
from amct_onnx.api.given import check_share, walkable
from amct_onnx.api.prune_check import check_runs
from amct_onnx.api.prune_config import PruneConfigSource, configure_pruning, retrain_notes
from amct_onnx.api.prune_source import PruneSource, load_float, prune_source
from amct_onnx.api.skipped import check_skipped
from amct_onnx.api.source import Source, blaming_illegal_models, source_files
from amct_onnx.api.sparse_result import SparsifyReport, SparsifyResult
from amct_onnx.api.structure_record import structure_alone
from amct_onnx.api.thin_out import ThinModel, masked_by_record, thin_out_model
from amct_onnx.api.trial import FITTED_TO, try_sparse
from amct_onnx.config.retrain import Flow
from amct_onnx.errors import ArgumentError, RecordError
from amct_onnx.graph import digest
from amct_onnx.graph.functions import inline_layer_functions
from amct_onnx.record import LoadedRecord, Record, RecordHeader, load_record


def sparsify(
    model: Source,
    data: Any = None,
    *,
    selection: Selection | str | None = None,
    saving: float | None = None,
    skip: Collection[str] = (),
    config: PruneConfigSource | None = None,
    trial: bool = True,
    input_shapes: Mapping[str, Sequence[int]] | None = None,
    progress: Progress | None = None,
) -> SparsifyResult:
    """Set two of every four weights along the input channels to zero.

    Args:
        model: path of an ONNX file, or a ModelProto (not changed).
        data: calibration feeds as for :func:`amct_onnx.quantize`, which can be walked several times.
        selection: which weights stay: ``l1``, the largest (without data the default), or ``compensated``, those whose
            loss the others make up for best on the data (with data the default); the others change then.
        saving: share of the model's multiply-adds that goes, a zero saving those of its weight (about half are in
            reach): only those layers are thinned out with which the results lose least on the data for what they save.
        skip: layers that stay as they are.
        config: path of an AMCT retrain config, or one read by :mod:`amct_onnx.config.retrain`; takes the place of
            `saving` and `skip`.
        trial: with data, run the sparse model beside the float model on the first feeds.
        input_shapes: input -> sizes to take for the free ones where there is no data to run the model on.
        progress: wraps the iterator of feeds of every walk over the data.

    Raises:
        AmctError: see :mod:`amct_onnx.errors`.
    """
    names = (skip,) if isinstance(skip, str) else tuple(skip)
    if config is not None:
        refuse_beside_config({"skip": names})
        if saving is not None:
            raise ArgumentError("{config} and {saving} exclude each other: each says which layers; drop one")
    _check_saving(saving, data)
    chosen = as_selection(selection, data)
    given = FittingData(walkable(data, "thinning out"), progress=progress)
    whole, base_dir = load_float(model)
    with blaming_illegal_models(whole, base_dir):
        source = prune_source(whole, base_dir, data=given.data, input_shapes=input_shapes)
        check_skipped(source.proto, base_dir, names)
        left, notes = dict.fromkeys(names, "it is skipped on request"), source.notes
        if config is not None:
            left, said = _left(source, config)
            notes = (*notes, *said)
        if saving is not None:
            goal = SparsityGoal(saving=saving, selection=chosen)
            left = choose_layers(source.proto, base_dir, source.shapes, left, goal, given)
        thin = thin_out_model(source.proto, base_dir, left, chosen, given, shapes=source.shapes)
        is_run = check_runs(thin.built, whole, base_dir, source.feed)
        samples = source.samples if trial else ()
        trials = try_sparse(whole, base_dir, thin.built, samples)
        record = _record(thin, whole, base_dir)
    notes = (*notes, *thin.notes, *(() if is_run else (_NOT_RUN,)))
    if trials and thin.state.is_modified:
        notes = (*notes, FITTED_TO)
    report = SparsifyReport(thin.summaries, thin.refusals, notes, trials, thin.saving)
    read = [Path(config)] if isinstance(config, str | os.PathLike) else []
    return SparsifyResult(record, thin.built, report, (*source_files(model, whole, base_dir), *read))


_NOT_RUN = "the float model does not run on random values, so the sparse model was not run either; give data"


def restore_sparse(
    model: Source, record: str | os.PathLike[str] | Record | LoadedRecord, *, structure_only: bool = False
) -> SparsifyResult:
    """Set the weights of a model to zero that the masks of a record do not keep.

    Args:
        model: the model the record was made for, or the sparse model that was written beside it; with
            `structure_only` any of the same structure.
        record: path of the record file, or a record.
        structure_only: take the record for a model with other weights, too; the result's record is then that of the
            structure alone, for this model.

    Raises:
        RecordError: the record cannot be read, breaks a rule, or does not fit the model.
    """
    loaded = record if isinstance(record, Record | LoadedRecord) else load_record(record)
    plain = plain_record(loaded)
    source = loaded.source if isinstance(loaded, LoadedRecord) else "record"
    if not any(entry.selective_prune for entry in plain.prune):
        raise RecordError(f"{source}: it holds no prune_record with selective_prune, so there is nothing to thin out")
    whole, base_dir = load_float(model)
    notes = () if structure_only else tuple(check_belongs(loaded, whole, base_dir))
    with blaming_illegal_models(whole, base_dir):
        inlined = inline_layer_functions(whole, base_dir)
        thin, said = masked_by_record(inlined, base_dir, plain, source, structure_only=structure_only)
    kept, left_out = structure_alone(plain, whole, base_dir) if structure_only else (plain, ())
    report = SparsifyReport(thin.summaries, thin.refusals, (*notes, *said, *left_out))
    read = [Path(record)] if isinstance(record, str | os.PathLike) else []
    return SparsifyResult(kept, thin.built, report, (*source_files(model, whole, base_dir), *read))


def _record(thin: ThinModel, whole: ModelProto, base_dir: Path | None) -> Record:
    header = RecordHeader(source_sha256=digest(whole, base_dir), weights=thin.state)
    if thin.state.is_modified:
        header = replace(header, modified_sha256=digest(*thin.built.to_source()))
    return Record(prune=thin.records, header=header)


def _check_saving(saving: float | None, data: Any) -> None:
    """Raise :class:`ArgumentError` for a saving that is no share, or that no data says where to find."""
    if saving is None:
        return
    check_share("saving", saving)
    if data is None:
        raise ArgumentError(
            "{saving} finds from {data} which layers are thinned out; give {data}, or leave {saving} out for all layers"
        )


def as_selection(wanted: Selection | str | None, data: Any) -> Selection:
    """Which weights stay; raises :class:`ArgumentError` for an unknown choice, or one that needs data."""
    if wanted is None:
        return Selection.L1 if data is None else Selection.COMPENSATED
    try:
        chosen = Selection(wanted)
    except ValueError:
        known = ", ".join(kind.value for kind in Selection)
        raise ArgumentError(f"{{selection}}: '{{value}}' is unknown; choose from {known}", value=wanted) from None
    if chosen is not Selection.L1 and data is None:
        raise ArgumentError(f"{{selection}} {chosen.value} chooses by {{data}}; give {{data}}, or choose l1")
    return chosen


def _left(source: PruneSource, config: PruneConfigSource) -> tuple[dict[str, str], tuple[str, ...]]:
    """The layers that a config does not thin out, each with the reason, and what a report should say of it."""
    resolved = configure_pruning(source.proto, source.base_dir, source.shapes, config, Flow.PRUNE)
    resolved.thinned()
    left = {name: layer.why_dense for name, layer in resolved.layers.items() if layer.sparsity is None}
    return left, retrain_notes(resolved, weights=True)
