"""A float model of another structure and its record, written together."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from contextlib import ExitStack
from pathlib import Path

from amct_onnx.api.result import SavedFiles
from amct_onnx.api.saving import check_outputs, note_replaced
from amct_onnx.graph import BuiltModel, ExternalNaming
from amct_onnx.graph.files import replacing, write_model


def save_structure(
    built: BuiltModel,
    texts: Mapping[str, str],
    paths: Mapping[str, Path],
    *,
    inputs: Iterable[Path],
    keep: Collection[Path],
) -> SavedFiles:
    """Write all files, or nothing.

    Args:
        built: the model.
        texts: kind of file -> what it holds; the kind of `paths` that is not among them is the model's.
        paths: kind of file -> path.
        inputs: files that must not be overwritten.
        keep: the record that the model was made from, which is left as it is where it bears the record's name.

    Raises:
        UsageError: an output would overwrite an input, or the folder cannot be written to.
    """
    kept = {path.resolve() for path in keep}
    written = {kind: path for kind, path in paths.items() if not (kind == "record" and path.resolve() in kept)}
    check_outputs(written, [*inputs, *keep])
    note_replaced(written.values())
    saved = SavedFiles(paths)
    (model,) = paths.keys() - texts.keys()
    with ExitStack() as staged:
        _, *weights = write_model(built, written[model], ExternalNaming.ONE_FILE, staged=staged)
        if weights:
            saved.weights[model] = tuple(weights)
        for kind in [kind for kind in written if kind in texts]:
            staged.enter_context(replacing(written[kind])).write_bytes(texts[kind].encode())
    return saved
