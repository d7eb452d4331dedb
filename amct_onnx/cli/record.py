"""``amct_onnx record check`` and ``amct_onnx record show``."""

from __future__ import annotations

import argparse
from dataclasses import asdict
from pathlib import Path
from typing import Any

from amct_onnx.api import restore_pruned, restore_sparse
from amct_onnx.api.belonging import check_belongs
from amct_onnx.api.compress import is_tensors_file, sibling_tensors
from amct_onnx.api.source import load_source
from amct_onnx.api.structure import is_to_restore, quantization_part, restored
from amct_onnx.cli.console import Console
from amct_onnx.cli.record_tables import prune_data, show_entries, show_prune
from amct_onnx.errors import RecordError
from amct_onnx.record import LoadedRecord, Record, load_record
from amct_onnx.rewrite import OutputForm, prepare, rewrite
from amct_onnx.rewrite.quants import prepare_for, record_quants, tensor_quants
from amct_onnx.wording import counted

_STRUCTURE_ALONE = "its weights were fitted, and no record holds these: `apply` takes its structure (--structure-only)"


def run_check(arguments: argparse.Namespace, console: Console) -> int:
    """Check a file (and that it fits a model); 1 when something is wrong with it."""
    if not arguments.file.is_file():
        raise RecordError(f"{arguments.file} cannot be read: no such file; give the path of a record file")
    try:
        loaded = load_record(arguments.file, strict=True)
        note = _check_fits(loaded, arguments.model, arguments.tensors) if arguments.model else ""
    except RecordError as error:
        console.result({"file": str(arguments.file), "valid": False, "faults": str(error).splitlines(), "note": ""})
        console.say(str(error))
        return 1
    console.result({"file": str(arguments.file), "valid": True, "faults": [], "note": note})
    console.say(f"{arguments.file}: {_counts(loaded.record)}; no fault found")
    if note:
        console.say(f"note: {note}")
    return 0


def _check_fits(loaded: LoadedRecord, source: Path, tensors_file: Path | None) -> str:
    """Go as far as applying the record goes, weights excepted; the note is what applying it takes."""
    if loaded.record.prunes_only:
        restore = restore_sparse if loaded.record.thins_only else restore_pruned
        is_fitted = loaded.record.is_fitted and is_to_restore(loaded.record, *load_source(source))
        restore(source, loaded, structure_only=is_fitted)
        return _STRUCTURE_ALONE if is_fitted else ""
    proto, base_dir = load_source(source)
    check_belongs(loaded, proto, base_dir)
    if is_to_restore(loaded.record, proto, base_dir):
        proto, base_dir = restored(source, loaded).to_source()
    plan = quantization_part(loaded)
    if is_tensors_file(loaded.source):
        tensor_quants(prepare(proto, base_dir).model, loaded, {}, strict=True)
        return ""
    prepared = prepare_for(plan, proto, base_dir)
    beside = sibling_tensors(Path(loaded.source))
    given = tensors_file or (beside if beside is not None and beside.exists() else None)
    tensors = None if given is None else load_record(given, strict=True)
    quants = record_quants(prepared, plan, tensors=tensors, strict=True)
    rewrite(prepared, quants.layers, OutputForm.ASCEND, inputs=quants.inputs, recurrent=quants.recurrent)
    return ""


def run_show(arguments: argparse.Namespace, console: Console) -> int:
    """Show the entries of a file."""
    loaded = load_record(arguments.file)
    record = loaded.record
    console.result(_as_data(record))
    if console.as_json:
        return 0
    console.say(f"{arguments.file}: {_counts(record)}")
    for finding in loaded.findings:
        console.say(f"warning: {finding}")
    show_entries(console, record)
    show_prune(console, record)
    return 0


def _counts(record: Record) -> str:
    counts = {"layer": len(record.layers), "cache": len(record.kv_cache)}
    parts = [f"{count} {what} {'entry' if count == 1 else 'entries'}" for what, count in counts.items() if count]
    parts += [counted(len(record.prune), "prune record")] if record.prune else []
    return ", ".join(parts) or "no entries"


def _as_data(record: Record) -> dict[str, Any]:
    layers = {
        name: {key: value for key, value in asdict(entry).items() if value not in (None, ())}
        for name, entry in record.layers.items()
    }
    header = record.header
    return {
        "header": None
        if header is None
        else {
            "format_version": header.format_version,
            "source_sha256": header.source_sha256,
            "weights": header.weights.value,
        },
        "layers": layers,
        "kv_cache": {name: asdict(entry) for name, entry in record.kv_cache.items()},
        "prune": [prune_data(prune) for prune in record.prune],
    }
