"""The work of 4:2 sparsity: from a model to the sparse model, its masks, and what to say of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from onnx import ModelProto

from amct_onnx.analyse.cost import Shapes
from amct_onnx.analyse.fitting.data import FittingData
from amct_onnx.analyse.fitting.evidence import data_notes
from amct_onnx.analyse.sparsity.compensate import compensate, why_not_compensated
from amct_onnx.analyse.sparsity.options import Selection
from amct_onnx.analyse.sparsity.savings import ZeroSavings
from amct_onnx.api.sparse_result import SparseSummary
from amct_onnx.errors import NothingToCompressError
from amct_onnx.findings import by_reason
from amct_onnx.graph import BuiltModel, build, constant_array
from amct_onnx.graph.op_table import known_constant
from amct_onnx.passes.base import Refusal
from amct_onnx.passes.drop_dead import DropDeadConstants
from amct_onnx.passes.sparsity.candidates import SparseLayer
from amct_onnx.passes.sparsity.mask_weights import Mask, MaskWeights
from amct_onnx.record import PruneRecord, Record, WeightState
from amct_onnx.rewrite.sparsity import Sparsifiable, magnitude_masks, mask_records, masks_of_records, open_sparsifiable

_NO_LAYER = "it has no Conv, ConvTranspose, Gemm or MatMul"
_NO_MASK = "the record has no mask for it (of layers that share a weight it names the first alone)"
_UNFED = "it was fed nothing that varies"


@dataclass(frozen=True, eq=False)
class ThinModel:
    """A sparse model.

    Attributes:
        built: the model.
        masks: layer -> its mask, in the shape of its weight.
        summaries: the layers.
        refusals: the others, and why.
        notes: what a report should say of the data.
        saving: share of the model's multiply-adds that zeros save; None where sizes are not known.
    """

    built: BuiltModel
    masks: Mapping[str, Mask]
    summaries: tuple[SparseSummary, ...]
    refusals: tuple[Refusal, ...]
    notes: tuple[str, ...] = ()
    saving: float | None = None

    @property
    def records(self) -> tuple[PruneRecord, ...]:
        """The masks, of a weight that layers share once."""
        others = {summary.name for summary in self.summaries if summary.shares_with}
        return mask_records({name: mask for name, mask in self.masks.items() if name not in others})

    @property
    def state(self) -> WeightState:
        """Whether the weights that stay changed."""
        changed = any(summary.is_compensated for summary in self.summaries)
        return WeightState.MODIFIED if changed else WeightState.RECOMPUTABLE


def thin_out_model(
    proto: ModelProto,
    base_dir: Path | None,
    left: Mapping[str, str],
    selection: Selection,
    given: FittingData,
    *,
    shapes: Shapes | None = None,
) -> ThinModel:
    """Thin out every layer that can be.

    Args:
        proto: the model, its functions with layers inlined; not changed.
        base_dir: folder of its external weights.
        left: layers to leave as they are -> why.
        selection: which weights stay.
        given: the data, for all selections but that by size.
        shapes: sizes of the model's tensors, which tell what zeros save.

    Raises:
        NothingToCompressError: no layer can be thinned out.
        DataError: no layer is fed anything finite.
    """
    opened = open_sparsifiable(proto, base_dir, left)
    if not opened.layers:
        raise NothingToCompressError(f"no layer of the model can be thinned out; {_reasons(opened.refusals)}")
    savings = ZeroSavings(opened.model, shapes or {})
    reasons: dict[str, str] = {}
    masks: dict[str, Mask] = {}
    notes: tuple[str, ...] = ()
    losses: dict[str, float] = {}
    if selection is Selection.COMPENSATED:
        seen = {id(node) for node in opened.model.graph.nodes}
        layers = opened.layers
        reasons = {name: why for name, one in layers.items() if (why := why_not_compensated(one, layers, seen))}
        _mask(opened, masks, reasons)
        rest = [layer for name, layer in opened.layers.items() if name not in reasons]
        found = compensate(opened.model, rest, proto, base_dir, given)
        masks.update(found.masks)
        reasons.update({layer.name: _UNFED for layer in rest if layer.name not in found.masks})
        losses = {name: one.lost for name, one in found.evidence.items() if one.lost is not None}
        notes = tuple(data_notes(found.evidence))
    _mask(opened, masks, [name for name in opened.layers if name not in masks])
    DropDeadConstants().run(opened.model)
    in_order = {name: masks[name] for name in opened.layers}
    summaries = _summaries(opened.layers.values(), losses, reasons)
    saving = savings.share({one.name: one.zeros / one.weights for one in summaries})
    return ThinModel(build(opened.model), in_order, summaries, opened.refusals, notes, saving)


def masked_by_record(
    proto: ModelProto, base_dir: Path | None, record: Record, source: str, *, structure_only: bool = False
) -> tuple[ThinModel, tuple[str, ...]]:
    """The model with the masks of a record, and notes about those that it does not hold.

    Args:
        proto: the model, its functions with layers inlined, and without the channels that the record takes out.
        base_dir: folder of its external weights.
        record: the record.
        source: what errors name.
        structure_only: the model may be another of the same structure; layers without a mask are then named, for in the
            record's model they may have shared the weight of one that has it.

    Raises:
        RecordError: a layer is not there or cannot be thinned out, or a mask does not fit it.
    """
    opened = open_sparsifiable(proto, base_dir)
    masks, notes = masks_of_records(opened, record.prune, source)
    dense = [f"'{name}'" for name in opened.layers if name not in masks]
    if dense and structure_only:
        notes = [*notes, f"no weight goes of {by_reason((name, _NO_MASK) for name in dense)}"]
    return _masked(opened, masks), tuple(notes)


def _masked(opened: Sparsifiable, masks: Mapping[str, Mask]) -> ThinModel:
    MaskWeights(tuple(opened.layers.values()), masks).run(opened.model)
    DropDeadConstants().run(opened.model)
    layers = [layer for name, layer in opened.layers.items() if name in masks]
    left = [layer for name, layer in opened.layers.items() if name not in masks]
    unsaid = tuple(Refusal(layer.name, layer.op_type, "the record has no mask for it") for layer in left)
    summaries = _summaries(layers)
    return ThinModel(build(opened.model), masks, summaries, (*opened.refusals, *unsaid))


def _mask(opened: Sparsifiable, masks: dict[str, Mask], names: Sequence[str] | Mapping[str, str]) -> None:
    """Let the largest weights of some layers stay."""
    layers = [opened.layers[name] for name in names]
    masks.update(magnitude_masks(layers))
    MaskWeights(layers, masks).run(opened.model)


def _summaries(
    layers: Iterable[SparseLayer], losses: Mapping[str, float] | None = None, reasons: Mapping[str, str] | None = None
) -> tuple[SparseSummary, ...]:
    first: dict[int, str] = {}
    return tuple(
        _summary(layer, first.setdefault(id(layer.weight), layer.name), losses or {}, reasons or {}) for layer in layers
    )


def _summary(layer: SparseLayer, first: str, losses: Mapping[str, float], reasons: Mapping[str, str]) -> SparseSummary:
    weight = constant_array(known_constant(layer.node.inputs[layer.index]))
    zeros = int(weight.size - np.count_nonzero(weight))
    return SparseSummary(
        layer.name,
        layer.op_type,
        int(weight.size),
        zeros,
        layer.name in losses,
        reasons.get(layer.name, ""),
        "" if first == layer.name else first,
        losses.get(layer.name),
    )


def _reasons(refusals: Sequence[Refusal]) -> str:
    return "; ".join(f"'{refusal.node}': {refusal.reason}" for refusal in refusals[:3]) or _NO_LAYER
