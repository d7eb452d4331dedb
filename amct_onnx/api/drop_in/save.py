"""``save_model``: from a filled record to models."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from amct_onnx.analyse.calibration_model import without_observers
from amct_onnx.analyse.obstacles import accumulator_obstacle
from amct_onnx.analyse.options import PlanOptions
from amct_onnx.analyse.recorder import RECORDERS
from amct_onnx.analyse.recurrent_scales import fitted_entry
from amct_onnx.analyse.weight_scales import WeightScales, fit_scales
from amct_onnx.api.amct_log import amct_log
from amct_onnx.api.assemble import assemble
from amct_onnx.api.drop_in.files import check_paths
from amct_onnx.api.drop_in.layers import plain_layers
from amct_onnx.api.source import blaming_illegal_models, load_source, source_files
from amct_onnx.errors import RecordError
from amct_onnx.passes.base import Refusal
from amct_onnx.passes.insert_qdq import QdqTarget
from amct_onnx.passes.locate import locate_layers
from amct_onnx.record import LayerRecord, LoadedRecord, Record, RecordHeader, load_record, save_record
from amct_onnx.rewrite import OutputForm, Prepared
from amct_onnx.rewrite.quants import prepare_for
from amct_onnx.wording import counted


def save_model(modified_onnx_file: str, record_file: str, save_path: str) -> None:
    """Write the deploy and the fake-quant model, and the fusion map, once the calibration runs are done.

    Args:
        modified_onnx_file: what :func:`quantize_model` wrote.
        record_file: its record, filled by the runs.
        save_path: folder and beginning of the names of ``_deploy_model.onnx``, ``_fake_quant_model.onnx`` and
            ``_quant.json``.

    Raises:
        RecordError: the record lacks scales, or belongs to another model.
        AmctError: see :mod:`amct_onnx.errors`.
    """
    with amct_log() as log:
        check_paths("save_model", record_file=record_file, save_path=save_path)
        proto, base_dir = load_source(modified_onnx_file)
        files = source_files(modified_onnx_file, proto, base_dir)
        proto, mark = without_observers(proto, modified_onnx_file)
        RECORDERS.flush(record_file)
        loaded = load_record(record_file)
        header = loaded.record.header
        if header is not None and header.source_sha256 not in (None, mark.source_sha256):
            raise RecordError(
                f"{record_file}: it was made for another model than {modified_onnx_file}; give the two files that one "
                "call of quantize_model wrote"
            )
        complete, missing = _complete(loaded, record_file)
        _warn(log, header, missing, record_file)
        with blaming_illegal_models(proto, base_dir):
            prepared = prepare_for(complete, proto, base_dir)
            complete = _fitted(prepared, complete, record_file)
            result = assemble(
                prepared,
                complete,
                Record(header=header),
                [OutputForm.ASCEND, OutputForm.FAKE_QUANT],
                QdqTarget.ONNXRUNTIME,
                refusals=(*missing, *locate_layers(prepared.model).refusals),
                feeds=header.runs[0] if header and header.runs else 0,
            )
        saved = result.save(save_path, protect=[*files, Path(record_file)], with_plan=False)
        for note in result.report.notes:
            log.warning("%s", note)
        for form in result.models:
            log.info("[Utils]: The model file is saved in %s", saved[form.value])


def _complete(loaded: LoadedRecord, path: str) -> tuple[Record, list[Refusal]]:
    """The record without the entries whose activation scale never came, and why.

    Raises:
        RecordError: no entry has one.
    """
    record = loaded.record
    wanted = {name: entry for name, entry in record.layers.items() if entry.scale_w or entry.is_tensor_quantize}
    missing = [name for name, entry in wanted.items() if _lacks_scale(entry)]
    state = _state_of_runs(record.header)
    if wanted and len(missing) == len(wanted):
        names = ", ".join(f"'{name}'" for name in missing[:3])
        raise RecordError(
            f"{path}: no layer has scale_d, first {names} ({state}); run the modified model under amct_onnx.AMCT_SO "
            "first, batch_num times"
        )
    layers = {name: entry for name, entry in record.layers.items() if name not in missing}
    # What says more of a layer than its scales stays: it decides what is fused.
    layers.update({name: LayerRecord(skip_fusion=True) for name in missing if record.layers[name].skip_fusion})
    faults = record.header.faults if record.header else ()
    return replace(record, layers=layers), [Refusal(name, "layer", _reason(name, faults, state)) for name in missing]


def _lacks_scale(entry: LayerRecord) -> bool:
    return entry.scale_d is None or (bool(entry.scale_r) and entry.scale_h is None)


def _reason(layer: str, faults: Iterable[str], state: str) -> str:
    """Why a layer has no scale: what the runs noted of it, else that they never came to it."""
    start = f"layer '{layer}': "
    noted = [fault.removeprefix(start) for fault in faults if fault.startswith(start)]
    return "; ".join(noted) or f"no data reached it ({state})"


def _warn(log: logging.Logger, header: RecordHeader | None, missing: Sequence[Refusal], path: str) -> None:
    """Say what the runs left undone, what they noted, and which layers stay float."""
    if header and header.runs and header.runs[0] < header.runs[1]:
        log.warning("%s: only %d of %d runs done; the scales rest on less data", path, *header.runs)
    explained = {f"layer '{refusal.node}': {refusal.reason}" for refusal in missing}
    for fault in header.faults if header else ():
        if fault not in explained:
            log.warning("%s: %s", path, fault)
    for refusal in missing:
        log.warning("layer '%s' stays float: %s", refusal.node, refusal.reason)


def _state_of_runs(header: RecordHeader | None) -> str:
    if header is None or header.runs is None:
        return "no run counted"
    return "; ".join([f"{header.runs[0]} of {header.runs[1]} runs done", *header.faults])


def _fitted(prepared: Prepared, record: Record, path: str) -> Record:
    """The record with weight scales high enough for the biases; written back where that changed anything."""
    weights = WeightScales(prepared, PlanOptions())
    layers = dict(record.layers)
    survey = plain_layers(prepared)
    for layer in survey.layers:
        entry = layers.get(layer.name)
        if entry is None or entry.scale_d is None or not entry.scale_w:
            continue
        weight, bias = weights.constants(layer)
        scale = np.asarray(entry.scale_w, np.float32)
        if scale.size in (1, layer.channels_out):
            fitted = fit_scales(layer, weight, bias, scale, entry.scale_d)
            if accumulator_obstacle(fitted, entry.scale_d) is None:
                layers[layer.name] = replace(entry, scale_w=tuple(fitted.tolist()))
    for recurrent in survey.recurrent:
        entry = layers.get(recurrent.name)
        if entry is not None and entry.scale_r:
            layers[recurrent.name] = fitted_entry(recurrent, entry)
    changed = [name for name, entry in layers.items() if entry != record.layers[name]]
    if changed:
        logging.getLogger("amct_onnx").info(
            "%s: scale_w of %s, first '%s', is raised until the int32 bias fits",
            path,
            counted(len(changed), "layer"),
            changed[0],
        )
        stored = load_record(path).record
        save_record(replace(stored, layers={**stored.layers, **{name: layers[name] for name in changed}}), path)
    return replace(record, layers=layers)
