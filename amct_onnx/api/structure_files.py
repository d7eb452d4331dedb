"""A float model of another structure and its record, written together."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar, Generic, TypeVar

from amct_onnx.api.result import SavedFiles
from amct_onnx.api.saving import check_outputs, note_replaced, prefixed_paths
from amct_onnx.graph import BuiltModel, ExternalNaming
from amct_onnx.graph.files import replacing, write_model
from amct_onnx.record import Record, format_record

Report = TypeVar("Report")


@dataclass(frozen=True)
class StructureResult(ABC, Generic[Report]):
    """A float model of another structure and its record, in memory.

    Attributes:
        record: what went.
        model: what is left.
        report: what was done.
        source: files that a save must not overwrite.
    """

    record: Record
    model: BuiltModel
    report: Report
    source: tuple[Path, ...] = field(default=(), repr=False)

    endings: ClassVar[Mapping[str, str]]
    """Kind of file, the model's and ``record`` -> how its name ends behind the prefix."""

    @abstractmethod
    def config_text(self) -> str:
        """A simple config that does as much to the same layers; what goes of each is then chosen anew."""

    def save(
        self,
        prefix: str | Path,
        *,
        protect: Iterable[Path] = (),
        keep: Collection[Path] = (),
        config: Path | None = None,
    ) -> SavedFiles:
        """Write the model and its record, ``PREFIX_`` before each of :attr:`endings`: all files, or nothing.

        Args:
            prefix: folder and beginning of the file names; folders are made.
            protect: further files that must not be overwritten.
            keep: the record that this result was made from, which is left as it is where it bears that name.
            config: also write :meth:`config_text` there.

        Returns:
            Kind (``pruned`` or ``sparse``, ``record``, ``config``) -> path.

        Raises:
            UsageError: an output would overwrite an input, or the folder cannot be written to.
        """
        paths, texts = prefixed_paths(prefix, self.endings), {"record": format_record(self.record)}
        if config is not None:
            paths["config"], texts["config"] = config, self.config_text()
        return _write_all(self.model, texts, paths, inputs=[*protect, *self.source], keep=keep)


def _write_all(
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
