"""What a compression gives back: plan, models and report, all in memory."""

from __future__ import annotations

import json
import time
from collections.abc import Collection, Iterable, Mapping
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from onnx import ModelProto

from amct_onnx.analyse.engine import Calibration
from amct_onnx.api.saving import check_outputs, modified_path, note_replaced, output_paths
from amct_onnx.errors import UsageError
from amct_onnx.graph import BuiltModel, ExternalNaming
from amct_onnx.graph.files import replacing, write_model
from amct_onnx.graph.op_table import OPS
from amct_onnx.passes.base import PassTiming, Refusal
from amct_onnx.passes.deploy_findings import DeployFinding
from amct_onnx.record import Record, format_record
from amct_onnx.rewrite import OutputForm

_EXTERNAL_NAMING = {
    OutputForm.ASCEND: ExternalNaming.DEPLOY,
    OutputForm.FAKE_QUANT: ExternalNaming.FAKE_QUANT,
    OutputForm.QDQ: ExternalNaming.ONE_FILE,
}


@dataclass(frozen=True)
class LayerSummary:
    """One quantized layer: its name, type, the source nodes it stands for, and how it is quantized.

    ``second_scale`` is the scale of the second input where that is computed as well, else None.
    """

    name: str
    op_type: str
    source_nodes: tuple[str, ...]
    scale_d: float
    offset_d: int
    weight_scales: int
    second_scale: float | None = None


@dataclass(frozen=True)
class InputSummary:
    """One input of an Add or MaxPool that is quantized by itself: node, which input, its tensor, and how."""

    node: str
    input_index: int
    op_type: str
    tensor: str
    scale_d: float
    offset_d: int


@dataclass(frozen=True)
class TrialResult:
    """How one compressed model did beside the float model on the first calibration feeds.

    Attributes:
        form: which output form.
        snr_db: signal-to-noise ratio over all float outputs, decibel; inf when equal.
        feeds: number of feeds it was tried on.
        error: why the model could not be run, None when it ran.
        speed_up: time of the float model over that of this one on the first feed here, default threads, a few runs
            in turns; None when not timed. An indication, no benchmark.
        snr_db_by_feed: the ratio of each feed by itself. Where these lie far apart, `snr_db` says little of other data.
    """

    form: str
    snr_db: float | None
    error: str | None = None
    speed_up: float | None = None
    feeds: int = 0
    snr_db_by_feed: tuple[float, ...] = ()


@dataclass(frozen=True)
class Report:
    """What was done and what was not.

    Attributes:
        layers: quantized layers in graph order.
        refusals: candidates left float, and fusions not done, with reasons.
        feeds: number of calibration feeds.
        qdq_tensors: number of tensors that only the QDQ form quantizes.
        trials: each runnable form tried out.
        notes: sentences a user should know.
        inputs: inputs of nodes that are quantized besides the layers.
        deploy: what the Ascend compiler will find in the deploy model, when that is made.
        timings: seconds of each pass, by output form (``prepare`` for what comes first).
        seconds: seconds of each step: preparing, balancing, calibrating, choosing scales, rewriting, trying.
    """

    layers: tuple[LayerSummary, ...] = field(repr=False)
    refusals: tuple[Refusal, ...] = field(repr=False)
    feeds: int
    qdq_tensors: int
    trials: tuple[TrialResult, ...] = ()
    notes: tuple[str, ...] = ()
    inputs: tuple[InputSummary, ...] = ()
    deploy: tuple[DeployFinding, ...] = field(default=(), repr=False)
    timings: Mapping[str, tuple[PassTiming, ...]] = field(default_factory=dict, repr=False)
    seconds: Mapping[str, float] = field(default_factory=dict, repr=False, compare=False)

    def to_dict(self) -> dict[str, Any]:
        """The report as plain data; the schema stands in docs/json.md."""
        return {
            "layers": [asdict(layer) for layer in self.layers],
            "inputs": [asdict(entry) for entry in self.inputs],
            "not_compressed": [asdict(refusal) for refusal in self.refusals],
            "calibration_feeds": self.feeds,
            "qdq_tensors": self.qdq_tensors,
            "trials": [asdict(trial) for trial in self.trials],
            "notes": list(self.notes),
            "deploy_findings": [asdict(finding) for finding in self.deploy],
        }


class SavedFiles(dict[str, Path]):
    """Kind of file -> path.

    Attributes:
        weights: output form -> external weight files beside its model.
        seconds: what writing took.
    """

    def __init__(self, paths: Mapping[str, Path]) -> None:
        super().__init__(paths)
        self.weights: dict[str, tuple[Path, ...]] = {}
        self.seconds = 0.0


@dataclass(frozen=True)
class CompressionResult:
    """Plan, models and report of one compression.

    Attributes:
        record: the plan of the layers.
        tensors: the plan of what only the QDQ form quantizes.
        models: output form -> finished model, weights still references.
        report: what was done.
        source: files of the source model, its external weights included; none when it was given in memory.
        calibration: the statistics that the plan rests on, None when it was applied without data.
        modified: the model that was quantized, where that is not the source: pruned, thinned out, fitted.
    """

    record: Record = field(repr=False)
    tensors: Record = field(repr=False)
    models: Mapping[OutputForm, BuiltModel] = field(repr=False)
    report: Report
    source: tuple[Path, ...] = ()
    calibration: Calibration | None = field(default=None, repr=False)
    modified: BuiltModel | None = field(default=None, repr=False)

    def model(self, form: OutputForm | str) -> ModelProto:
        """One compressed model as a complete ModelProto.

        Raises:
            UsageError: the form was not asked for.
            ModelError: its weights are too large for one message.
        """
        built = {known.value: model for known, model in self.models.items()}
        wanted = form.value if isinstance(form, OutputForm) else form
        if not built:
            raise UsageError(
                "the result holds no quantized model, since no layer was quantized; `modified` is the float one"
            )
        if wanted not in built:
            raise UsageError(f"the result holds no '{wanted}' model, only {', '.join(built)}; name it in formats")
        return built[wanted].to_proto()

    def save(
        self,
        prefix: str | Path,
        *,
        protect: Iterable[Path] = (),
        keep: Collection[Path] = (),
        with_plan: bool = True,
    ) -> SavedFiles:
        """Write every model, the plan and the fusion map as ``PREFIX_...``: all of them, or nothing.

        Args:
            prefix: folder and beginning of the file names; folders are made.
            protect: further files that must not be overwritten.
            keep: files of the plan that this result was made from; where they bear the names of the results they
                are left as they are, comments included.
            with_plan: write record and tensors file, too.

        Returns:
            Kind (``ascend``, ``fake_quant``, ``qdq``, ``record``, ``tensors``, ``quant_json``, ``modified``) -> path;
            external weight files are in its ``weights``. Without quantized models ``modified`` and ``record`` alone.

        Raises:
            UsageError: an output would overwrite an input, or the folder cannot be written to.
        """
        begin = time.perf_counter()
        paths = output_paths(prefix, self.models)
        if not self.models:
            paths = {"record": paths["record"]}
        if self.modified is not None:
            paths["modified"] = modified_path(prefix)
        paths = {kind: path for kind, path in paths.items() if with_plan or not _is_plan(kind)}
        kept = {path.resolve() for path in keep}
        written = {kind: path for kind, path in paths.items() if not (_is_plan(kind) and path.resolve() in kept)}
        check_outputs(written, [*protect, *keep, *self.source])
        note_replaced(written.values())
        texts = {
            "record": format_record(self.record),
            "tensors": format_record(self.tensors),
            "quant_json": json.dumps(self._fusion_map(), indent=2) + "\n",
        }
        saved = SavedFiles(paths)
        built = {form.value: (model, _EXTERNAL_NAMING[form]) for form, model in self.models.items()}
        if self.modified is not None:
            built["modified"] = (self.modified, ExternalNaming.ONE_FILE)
        with ExitStack() as staged:
            for kind, (model, naming) in built.items():
                _, *weights = write_model(model, written[kind], naming, staged=staged)
                if weights:
                    saved.weights[kind] = tuple(weights)
            for kind in texts.keys() & written.keys():
                staged.enter_context(replacing(written[kind])).write_bytes(texts[kind].encode())
        saved.seconds = time.perf_counter() - begin
        return saved

    def _fusion_map(self) -> dict[str, Any]:
        """Which source nodes each quantized layer stands for, and what surrounds it in the deploy model."""
        return {
            "version": 1,
            "layers": [
                {
                    "name": layer.name,
                    "type": layer.op_type,
                    "before": list(layer.source_nodes),
                    "after": _deployed(layer),
                }
                for layer in self.report.layers
            ],
        }

    def record_text(self) -> str:
        """The record as it would be written."""
        return format_record(self.record)


def _deployed(layer: LayerSummary) -> list[str]:
    """The nodes of the deploy model that stand for a layer; recurrent ones quantize by themselves."""
    if OPS[layer.op_type].gates:
        return [layer.name]
    quants = [f"{layer.name}.quant", *([] if layer.second_scale is None else [f"{layer.name}.quant_1"])]
    return [*quants, layer.name, f"{layer.name}.dequant"]


def _is_plan(kind: str) -> bool:
    return kind in ("record", "tensors")
