"""Where results go: their names, what must not be overwritten, and where nothing can be written."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Mapping
from pathlib import Path

from amct_onnx.errors import UsageError
from amct_onnx.graph import ExternalNaming
from amct_onnx.rewrite import OutputForm

logger = logging.getLogger(__name__)

_RECORD = "record.txt"
_MODIFIED = "modified_model.onnx"
_MODELS = (*(form.suffix for form in OutputForm), _MODIFIED, "pruned_model.onnx", "sparse_model.onnx")
_LONGEST_NAME = 255
# What a writer puts around a name while it writes, and behind it for external weights.
_NAME_MARGIN = len(".") + len(".xxxxxxxx") + len(".data")


def output_paths(prefix: str | Path, forms: Iterable[OutputForm]) -> dict[str, Path]:
    """The files that saving quantized models to `prefix` writes.

    Raises:
        UsageError: the prefix is a folder, or nothing a file name can begin with.
    """
    endings = {form.value: form.suffix for form in forms}
    plan = {"record": _RECORD, "tensors": "tensors.txt", "quant_json": "quant.json"}
    return prefixed_paths(prefix, {**endings, **plan})


def modified_path(prefix: str | Path) -> Path:
    """The file of a float model that is neither the source nor quantized."""
    return prefixed_paths(prefix, {"modified": _MODIFIED})["modified"]


def prefixed_paths(prefix: str | Path, endings: Mapping[str, str]) -> dict[str, Path]:
    """``PREFIX_ending`` for each kind of file.

    Raises:
        UsageError: the prefix is a folder, or nothing a file name can begin with.
    """
    text = os.fspath(prefix)
    stem = Path(text)
    has_name = not text.endswith((os.sep, "/", f"{os.sep}.", "/.")) and stem.name not in ("", ".", "..")
    if not has_name:
        raise UsageError(
            f"output prefix '{text}' has no file name; give a folder and a beginning, like {stem / 'model'}"
        )
    paths = {kind: stem.with_name(f"{stem.name}_{ending}") for kind, ending in endings.items()}
    longest = max(len(os.fsencode(path.name)) for path in paths.values()) + _NAME_MARGIN
    if "\0" in text or longest > _LONGEST_NAME:
        raise UsageError(f"output prefix {text!r} cannot begin a file name; choose a shorter or plainer one")
    return paths


def note_replaced(paths: Iterable[Path]) -> None:
    """Log which files of an earlier run are about to be replaced, and which models thereby lose their record."""
    written = list(paths)
    replaced = [path for path in written if path.exists()]
    if not replaced:
        return
    logger.warning("replacing earlier outputs: %s", ", ".join(path.name for path in replaced))
    for record in replaced:
        bereft = [path.name for path in _models_of(record) if path not in written and path.exists()]
        if bereft:
            logger.warning(
                "%s was the record of %s; give each command a prefix of its own", record.name, ", ".join(bereft)
            )


def _models_of(record: Path) -> list[Path]:
    """What models of the same prefix would be called; none of a file that is no record."""
    if not record.name.endswith(f"_{_RECORD}"):
        return []
    beginning = record.name.removesuffix(_RECORD)
    return [record.with_name(f"{beginning}{ending}") for ending in _MODELS]


def check_outputs(paths: Mapping[str, Path], inputs: Iterable[Path]) -> None:
    """Refuse, before any work is done, what could not be written or would destroy an input or another output.

    Raises:
        UsageError: names the file and the remedy.
    """
    resolved = {path.resolve() for path in inputs}
    taken: set[Path] = set()
    for path in paths.values():
        if path.resolve() in taken:
            raise UsageError(f"{path}: two outputs would have this name; give each one of its own")
        taken.add(path.resolve())
        if path.resolve() in resolved or any(_is_data_of(path, other) for other in resolved):
            raise UsageError(
                f"{path}: this output would overwrite an input of the run; choose another prefix or path for it"
            )
        if path.is_dir():
            raise UsageError(f"{path}: a folder of this name is in the way; choose another prefix or path for it")
    for folder in {path.parent for path in paths.values()}:
        existing = next(parent for parent in (folder, *folder.absolute().parents) if parent.exists())
        if not existing.is_dir() or not os.access(existing, os.W_OK | os.X_OK):
            raise UsageError(f"{existing}: cannot write here; choose another path for what is written")


def _is_data_of(output: Path, other: Path) -> bool:
    """Whether `other` bears a name that external weights of `output` would be written under."""
    if output.parent.resolve() != other.parent:
        return False
    endings = tuple(f"_{naming.value}.external" for naming in ExternalNaming)
    return other.name == f"{output.name}.data" or other.name.endswith(endings)
