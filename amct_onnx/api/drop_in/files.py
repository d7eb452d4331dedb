"""Arguments and files of AMCT's functions."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path

from amct_onnx.api.saving import check_outputs
from amct_onnx.api.source import load_source, source_files
from amct_onnx.errors import UsageError
from amct_onnx.graph.files import replacing


def write_text(path: str, text: str) -> None:
    """Write a text in one step, with a line end behind it."""
    with replacing(Path(path)) as temporary:
        temporary.write_text(text + "\n", encoding="utf-8")


def announce(log: logging.Logger, outputs: Iterable[str], inputs: Collection[Path]) -> None:
    """Refuse outputs that would destroy an input; name the files that are about to be replaced."""
    paths = {str(index): Path(path) for index, path in enumerate(outputs)}
    check_outputs(paths, inputs)
    for path in paths.values():
        if path.exists():
            log.warning("%s is replaced", path)


def open_files(
    log: logging.Logger,
    function: str,
    model_file: object,
    *,
    inputs: Mapping[str, object],
    outputs: Mapping[str, object],
) -> None:
    """Check the paths of a call, argument -> path, before any work is done, and name the files that it replaces.

    Args:
        log: where that goes.
        function: what errors call the function.
        model_file: the model.
        inputs: further files that are read; None for those that are not given.
        outputs: files that are written.
    """
    given = {name: path for name, path in inputs.items() if path is not None}
    check_paths(function, model_file=model_file, **given, **outputs)
    files = source_files(str(model_file), *load_source(str(model_file)))
    announce(log, map(str, outputs.values()), [*files, *(Path(str(path)) for path in given.values())])


def check_paths(function: str, **arguments: object) -> None:
    """Refuse what is no path, naming function and argument."""
    for name, value in arguments.items():
        if not isinstance(value, str | Path):
            raise UsageError(f"{function}: {name} is {value!r}, but it is the path of a file; correct it")


def absolute(path: str) -> str:
    """The path as other processes, in other folders, find it."""
    return str(Path(path).resolve())
