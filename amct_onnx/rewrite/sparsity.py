"""From a model to the layers that can be thinned out 4:2, from masks to a record and back, and to the sparse model."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import permutations
from pathlib import Path

import numpy as np
from onnx import ModelProto

from amct_onnx.errors import RecordError
from amct_onnx.graph import BuiltModel, Model, build, constant_array, import_model, name_nodes
from amct_onnx.graph.element_types import settle_types
from amct_onnx.passes.base import Refusal
from amct_onnx.passes.densify import DensifySparse
from amct_onnx.passes.drop_dead import DropDeadConstants
from amct_onnx.passes.fold_weights import FoldWeights
from amct_onnx.passes.sparsity.candidates import GROUP, KEPT, SparseLayer, find_candidates
from amct_onnx.passes.sparsity.magnitude import largest_of_four
from amct_onnx.passes.sparsity.mask_weights import Mask, MaskWeights
from amct_onnx.record import PruneNode, PruneRecord
from amct_onnx.record.prune import pack_mask, unpack_mask


@dataclass(frozen=True, eq=False)
class Sparsifiable:
    """A model whose layers have been surveyed.

    Attributes:
        model: the graph, named; thinning out changes it.
        layers: the layers that can be thinned out, by name, in graph order.
        refusals: why others cannot.
    """

    model: Model
    layers: Mapping[str, SparseLayer]
    refusals: tuple[Refusal, ...]


def open_sparsifiable(proto: ModelProto, base_dir: Path | None, left: Mapping[str, str] | None = None) -> Sparsifiable:
    """Survey a model.

    Args:
        proto: the model, its functions with layers inlined; not changed.
        base_dir: folder of its external weights.
        left: layers to leave as they are -> why.
    """
    model = import_model(proto, base_dir)
    name_nodes(model)
    DensifySparse().run(model)
    FoldWeights().run(model)
    settle_types(model)
    found = find_candidates(model, left)
    return Sparsifiable(model, {layer.name: layer for layer in found.layers}, found.refusals)


def mask_model(sparsifiable: Sparsifiable, masks: Mapping[str, Mask]) -> BuiltModel:
    """The model without the weights that masks do not keep; `sparsifiable` is used up."""
    MaskWeights(tuple(sparsifiable.layers.values()), masks).run(sparsifiable.model)
    DropDeadConstants().run(sparsifiable.model)
    return build(sparsifiable.model)


def magnitude_masks(layers: Iterable[SparseLayer]) -> dict[str, Mask]:
    """Layer -> the mask of its largest weights."""
    return {layer.name: largest_of_four(constant_array(layer.weight), layer.axis) for layer in layers}


def mask_records(masks: Mapping[str, Mask]) -> tuple[PruneRecord, ...]:
    """What a record says of masks; their shape is that of the weight in the ONNX model."""
    return tuple(PruneRecord(selective_prune=_node(name, mask)) for name, mask in masks.items())


def _node(name: str, mask: Mask) -> PruneNode:
    shape = tuple(int(size) for size in mask.shape)
    return PruneNode(name).with_attr("mask_shape", shape).with_attr("selective_mask", pack_mask(mask))


def masks_of_records(
    sparsifiable: Sparsifiable, records: Iterable[PruneRecord], source: str
) -> tuple[dict[str, Mask], list[str]]:
    """The masks that a record holds, and notes about those that it does not.

    Args:
        sparsifiable: the model.
        records: its prune records; those of channels say nothing of masks.
        source: what errors name.

    Raises:
        RecordError: a layer is not there or cannot be thinned out, or a mask does not fit it.
    """
    masks: dict[str, Mask] = {}
    notes: list[str] = []
    unsaid: list[SparseLayer] = []
    for record in records:
        if (node := record.selective_prune) is None:
            continue
        layer = _layer_of(sparsifiable, node, source)
        if node.selective_mask is None:
            unsaid.append(layer)
        else:
            masks[node.name] = _fitting(node, layer, source)
    _share(sparsifiable, masks, source)
    for layer in unsaid:
        if layer.name not in masks:
            notes.append(f"{source}: '{layer.name}' has no selective_mask; the largest weights stay")
            masks[layer.name] = largest_of_four(constant_array(layer.weight), layer.axis)
            _share(sparsifiable, masks, source)
    return masks, notes


def _layer_of(sparsifiable: Sparsifiable, node: PruneNode, source: str) -> SparseLayer:
    layer = sparsifiable.layers.get(node.name)
    if layer is not None:
        return layer
    where = f"{source}: selective_prune of '{node.name}'"
    for refusal in sparsifiable.refusals:
        if refusal.node == node.name:
            raise RecordError(f"{where}: it cannot be thinned out: {refusal.reason}; delete the prune_record")
    raise RecordError(f"{where}: it is no layer of the model; apply the record to the model that it was made for")


def _fitting(node: PruneNode, layer: SparseLayer, source: str) -> Mask:
    """A mask in the shape of the weight; one that another framework's layout made is turned where that is clear."""
    where = f"{source}: selective_prune of '{node.name}'"
    shape, wanted = node.mask_shape or (), layer.axis.shape
    mask = unpack_mask(node.selective_mask or (), shape)
    if shape != wanted:
        turns = [order for order in permutations(range(len(shape))) if tuple(shape[axis] for axis in order) == wanted]
        if len(turns) != 1:
            how = "cannot be turned into it" if not turns else "can be turned into it in several ways"
            raise RecordError(
                f"{where}: mask_shape is {list(shape)}, the weight is {list(wanted)}, and the mask {how}; "
                "write the mask in the weight's layout"
            )
        mask = np.ascontiguousarray(mask.transpose(turns[0]))
    if most_kept(mask, layer) > KEPT:
        raise RecordError(
            f"{where}: the mask keeps more than {KEPT} of {GROUP} weights along the input channels; search it again"
        )
    return mask


def most_kept(mask: Mask, layer: SparseLayer) -> int:
    """How many weights of a group of four a mask keeps at most."""
    seen = layer.axis.seen(mask)
    groups, count, others = seen.shape
    padded = np.zeros((groups, -(-count // GROUP) * GROUP, others), np.int64)
    padded[:, :count] = seen
    return int(padded.reshape(groups, -1, GROUP, others).sum(axis=2).max(initial=0))


def _share(sparsifiable: Sparsifiable, masks: dict[str, Mask], source: str) -> None:
    """Layers that share a weight get the mask of the one that has it; all that have one must have the same."""
    for name, mask in list(masks.items()):
        for other in sparsifiable.layers[name].shares:
            if masks.setdefault(other, mask) is not mask and not np.array_equal(masks[other], mask):
                raise RecordError(
                    f"{source}: selective_prune of '{name}': '{other}' shares its weight and has another mask; "
                    "give both the same"
                )
