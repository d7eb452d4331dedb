"""What happens to every model first, the same way when a plan is made and when it is applied."""

from __future__ import annotations

from collections.abc import Collection, Container, Iterable
from dataclasses import dataclass
from pathlib import Path

from onnx import ModelProto

from amct_onnx.errors import ModelError
from amct_onnx.graph import Model, import_model, name_nodes
from amct_onnx.graph.op_table import spread_types
from amct_onnx.graph.opset import raise_opset
from amct_onnx.passes.affine import BROADCAST_OPSET
from amct_onnx.passes.base import Pass, PassResult, PassTiming, Refusal, run_pipeline
from amct_onnx.passes.fold_transpose import FoldTranspose
from amct_onnx.passes.fuse_affine import FuseAffine
from amct_onnx.passes.fuse_affine_before import FuseAffineBefore
from amct_onnx.passes.merge_affine import MergeAffine


@dataclass(frozen=True)
class Prepared:
    """A named and fused model.

    Attributes:
        model: the graph to work on; take a copy before changing it.
        fused: layer name -> names of all source nodes it now stands for.
        refusals: fusions that could not be done.
        timings: seconds of each pass.
        skip_fusion: nodes that were kept from fusing. With these names alone a later call leaves the same graph, so a
            plan has to say them.
        arithmetic: whether arithmetic with constants was fused.
    """

    model: Model
    fused: dict[str, tuple[str, ...]]
    refusals: tuple[Refusal, ...]
    timings: tuple[PassTiming, ...]
    skip_fusion: frozenset[str]
    arithmetic: bool

    def at_opset(self, minimum: int) -> Prepared:
        """The same model with the default operator set raised to `minimum` where it is older.

        Raises:
            ModelError: the model cannot be converted.
        """
        raised = raise_opset(self.model.proto, minimum, self.model.base_dir)
        if raised is self.model.proto:
            return self
        again = self._fused_again(raised, self.skip_fusion)
        more = {name for name in self._differing(again) if name not in self.fused}
        if more:
            # What the converter made of a node may fuse where the node itself did not; no scale was chosen for that.
            again = self._fused_again(raised, self.skip_fusion | more)
        if differing := self._differing(again):
            raise ModelError(
                f"operator set {minimum}, which this output form needs, changes what is folded into '{differing[0]}'; "
                f"export the model again with opset {minimum} or later"
            )
        return again

    def _fused_again(self, proto: ModelProto, skip: frozenset[str]) -> Prepared:
        return _prepare(proto, self.model.base_dir, skip, arithmetic=self.arithmetic)

    def _differing(self, other: Prepared) -> list[str]:
        """Nodes of this model that stand for other nodes there."""
        names = [node.name for node in self.model.graph.nodes]
        return [name for name in names if self.fused.get(name) != other.fused.get(name)]


class _Everything(Container[str]):
    """Contains every name."""

    def __contains__(self, _name: object) -> bool:
        return True


def prepare(
    proto: ModelProto, base_dir: Path | None, *, skip_fusion: Collection[str] = (), do_fusion: bool = True
) -> Prepared:
    """Import, name, spread element types and fuse.

    Args:
        proto: the source model, never changed.
        base_dir: folder of its external weights.
        skip_fusion: nodes to keep from fusing: layers, or what would be folded into them.
        do_fusion: False keeps every node from fusing.
    """
    names = frozenset(skip_fusion)
    if do_fusion:
        return _prepare(proto, base_dir, names)
    model = _imported(proto, base_dir)
    results, timings = run_pipeline(model, _passes(_Everything(), arithmetic=_takes_arithmetic(model)))
    withheld = {name for result in results for name in result.withheld}
    refusals = tuple(refusal for result in results for refusal in result.refusals)
    return Prepared(model, {}, refusals, tuple(timings), names | withheld, _takes_arithmetic(model))


def _prepare(
    proto: ModelProto, base_dir: Path | None, skip: frozenset[str], *, arithmetic: bool | None = None
) -> Prepared:
    model = _imported(proto, base_dir)
    takes = _takes_arithmetic(model) if arithmetic is None else arithmetic
    results, timings = run_pipeline(model, _passes(skip, arithmetic=takes))
    refusals = tuple(refusal for result in results for refusal in result.refusals)
    return Prepared(model, _joined(results), refusals, tuple(timings), skip, takes)


def _imported(proto: ModelProto, base_dir: Path | None) -> Model:
    model = import_model(proto, base_dir)
    name_nodes(model)
    spread_types(model)
    return model


def _takes_arithmetic(model: Model) -> bool:
    return model.opset >= BROADCAST_OPSET


def _passes(skip: Container[str], *, arithmetic: bool) -> list[Pass]:
    return [
        FoldTranspose(skip),
        FuseAffine(skip, arithmetic),
        FuseAffineBefore(skip, arithmetic),
        MergeAffine(skip, arithmetic),
    ]


def _joined(results: Iterable[PassResult]) -> dict[str, tuple[str, ...]]:
    """Node -> all source nodes it stands for after every pass, itself first."""
    fused: dict[str, tuple[str, ...]] = {}
    for result in results:
        for name, members in result.merged.items():
            before = (source for member in members for source in fused.pop(member, (member,)))
            fused[name] = tuple(dict.fromkeys((name, *before)))
    return fused
