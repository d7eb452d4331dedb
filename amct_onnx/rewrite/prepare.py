"""What happens to every model first, the same way when a plan is made and when it is applied."""

from __future__ import annotations

import time
from collections.abc import Collection, Container, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
from onnx import ModelProto

from amct_onnx.errors import ModelError
from amct_onnx.graph import Model, import_model, name_nodes
from amct_onnx.graph.element_types import settle_types
from amct_onnx.graph.functions import inline_layer_functions
from amct_onnx.graph.opset import raise_opset
from amct_onnx.passes.affine import BROADCAST_OPSET
from amct_onnx.passes.balance import BalanceLayers, Divided, Factors
from amct_onnx.passes.base import Pass, PassResult, PassTiming, Refusal, run_pipeline
from amct_onnx.passes.densify import DensifySparse
from amct_onnx.passes.fold_transpose import FoldTranspose
from amct_onnx.passes.fold_weights import FoldWeights
from amct_onnx.passes.fuse_affine import FuseAffine
from amct_onnx.passes.fuse_affine_before import FuseAffineBefore
from amct_onnx.passes.lift_floats import LiftFloats
from amct_onnx.passes.merge_affine import MergeAffine
from amct_onnx.passes.split_gemm import SplitGemm
from amct_onnx.passes.turn_product import TurnProduct


@dataclass(frozen=True)
class Origin:
    """A tensor of the source model, and what was done to its values.

    Attributes:
        name: its name.
        change: the division by balance factors, None where there was none.
        is_lifted: whether it was made float32 from another type.
    """

    name: str
    change: Divided | None = None
    is_lifted: bool = False


@dataclass(frozen=True)
class Prepared:
    """A named, fused and balanced model.

    Attributes:
        model: the graph to work on; take a copy before changing it.
        fused: layer name -> names of all source nodes it now stands for.
        refusals: fusions that could not be done.
        timings: seconds of each pass.
        skip_fusion: nodes that were kept from fusing. With these names alone a later call leaves the same graph, so a
            plan has to say them.
        rules: which fusions were tried.
        balance: balance factors that were applied, layer name -> float32 [channels_in].
        divided: tensors that hold another's values divided by such factors.
        folded: layers whose results are divided -> by what, float32 [channels_out]; scales in a record are those of
            the undivided weights.
        multiplied: names of the Mul nodes that divide where no layer does.
        lifted: float32 tensors -> names of the source's tensors, of another type, whose values they hold.
        moved: tensors that nodes put around layers made -> names of the source's tensors whose values they hold; what a
            layer reads has its last two axes swapped.
        unseen: names of nodes put around layers, one of whose inputs the source does not compute.
    """

    model: Model
    fused: dict[str, tuple[str, ...]]
    refusals: tuple[Refusal, ...]
    timings: tuple[PassTiming, ...]
    skip_fusion: frozenset[str]
    rules: FusionRules
    balance: Mapping[str, Factors] = field(default_factory=dict)
    divided: Mapping[str, Divided] = field(default_factory=dict)
    folded: Mapping[str, Factors] = field(default_factory=dict)
    multiplied: frozenset[str] = frozenset()
    lifted: Mapping[str, str] = field(default_factory=dict)
    moved: Mapping[str, str] = field(default_factory=dict)
    unseen: frozenset[str] = frozenset()

    def origin_of(self, name: str) -> Origin:
        """Where the source model has the values of one of this model's tensors."""
        change = self.divided.get(name)
        source = name if change is None else change.source
        if change is not None and source in self.moved:
            change = Divided(source, np.swapaxes(np.atleast_2d(change.inverse), -1, -2))
        original = self.lifted.get(source, source)
        return Origin(self.moved.get(original, original), change, source in self.lifted)

    def balanced(self, factors: Mapping[str, Factors]) -> Prepared:
        """The same model, not balanced before, with balance factors applied: layer name -> float32 [channels_in]."""
        if not factors:
            return self
        begin = time.perf_counter()
        model = self.model.copy()
        result = BalanceLayers(factors).run(model)
        timing = PassTiming("BalanceLayers", time.perf_counter() - begin, len(result.changed))
        return replace(
            self,
            model=model,
            timings=(*self.timings, timing),
            balance=factors,
            divided=result.divided,
            folded=result.folded,
            multiplied=result.multiplied,
        )

    def at_opset(self, minimum: int) -> Prepared:
        """The same model with the default operator set raised to `minimum` where it is older.

        Raises:
            ModelError: the model cannot be converted.
        """
        raised = raise_opset(self.model.proto, minimum, self.model.base_dir)
        if raised is self.model.proto:
            return self
        again = self._fused_again(raised, self.skip_fusion)
        more = self._gained(again)
        if more:
            # What the converter made of a node, or knows of its shape, may fuse where the node itself did not; no scale
            # was chosen for that.
            again = self._fused_again(raised, self.skip_fusion | more)
        if differing := self._differing(again):
            raise ModelError(
                f"operator set {minimum}, which this output form needs, changes what is folded into '{differing[0]}'; "
                f"export the model again with opset {minimum} or later"
            )
        return again.balanced(self.balance)

    def _fused_again(self, proto: ModelProto, skip: frozenset[str]) -> Prepared:
        imported = _imported(proto, self.model.base_dir, documented_only=self.rules.documented_only)
        return _prepare(imported, skip, self.rules)

    def _gained(self, other: Prepared) -> set[str]:
        """What fuses there only: nodes that take nothing in here, and nodes that another takes in besides."""
        gained: set[str] = set()
        for name in self._differing(other):
            members = self.fused.get(name)
            gained |= {name} if members is None else set(other.fused.get(name, ())) - set(members)
        return gained

    def _differing(self, other: Prepared) -> list[str]:
        """Nodes of this model that stand for other nodes there."""
        names = [node.name for node in self.model.graph.nodes]
        return [name for name in names if self.fused.get(name) != other.fused.get(name)]


@dataclass(frozen=True)
class FusionRules:
    """Which fusions are tried.

    Attributes:
        arithmetic: whether arithmetic with constants is fused, not BatchNormalization alone.
        documented_only: only those that AMCT documents, for records of other tools, whose scales are those of layers
            fused like that: BatchNormalization joined with Mul or Add behind it, and then folded into a layer.
    """

    arithmetic: bool
    documented_only: bool = False

    def passes(self, skip: Container[str]) -> list[Pass]:
        """The passes, in order."""
        if self.documented_only:
            return [MergeAffine(skip, self.arithmetic), FuseAffine(skip, False)]
        return [
            FoldTranspose(skip),
            FuseAffine(skip, self.arithmetic),
            FuseAffineBefore(skip, self.arithmetic),
            MergeAffine(skip, self.arithmetic),
        ]


class _Everything(Container[str]):
    """Contains every name."""

    def __contains__(self, _name: object) -> bool:
        return True


def prepare(
    proto: ModelProto,
    base_dir: Path | None,
    *,
    skip_fusion: Collection[str] = (),
    do_fusion: bool = True,
    documented_only: bool = False,
) -> Prepared:
    """Make a model ready, the same way for a plan and for its application.

    Inline functions that hold layers, name, make constants of what is constant, rearrange products, spread element
    types, lift other float types to float32, and fuse.

    Args:
        proto: the source model, never changed.
        base_dir: folder of its external weights.
        skip_fusion: nodes to keep from fusing: layers, or what would be folded into them.
        do_fusion: False keeps every node from fusing.
        documented_only: fuse what AMCT documents and nothing else; see :class:`FusionRules`.
    """
    names = frozenset(skip_fusion)
    imported = _imported(proto, base_dir, documented_only=documented_only)
    rules = FusionRules(imported.model.opset >= BROADCAST_OPSET, documented_only)
    if do_fusion:
        return _prepare(imported, names, rules)
    results, timings = run_pipeline(imported.model, rules.passes(_Everything()))
    withheld = {name for result in results for name in result.withheld}
    return _prepared(imported, {}, results, timings, names | withheld, rules)


def _prepare(imported: _Imported, skip: frozenset[str], rules: FusionRules) -> Prepared:
    results, timings = run_pipeline(imported.model, rules.passes(skip))
    return _prepared(imported, _joined(results), results, timings, skip, rules)


def _prepared(
    imported: _Imported,
    fused: dict[str, tuple[str, ...]],
    results: Iterable[PassResult],
    timings: Iterable[PassTiming],
    skip: frozenset[str],
    rules: FusionRules,
) -> Prepared:
    return Prepared(
        imported.model,
        fused,
        tuple(refusal for result in results for refusal in result.refusals),
        tuple(timings),
        skip,
        rules,
        lifted=imported.lifted,
        moved=imported.moved,
        unseen=imported.unseen,
    )


@dataclass(frozen=True)
class _Imported:
    """A named model before fusing; `lifted`, `moved` and `unseen` as :class:`Prepared` has them."""

    model: Model
    lifted: Mapping[str, str]
    moved: Mapping[str, str]
    unseen: frozenset[str]


def _imported(proto: ModelProto, base_dir: Path | None, *, documented_only: bool) -> _Imported:
    model = import_model(inline_layer_functions(proto, base_dir), base_dir)
    name_nodes(model)
    DensifySparse().run(model)
    FoldWeights().run(model)
    rearranged = [] if documented_only else [SplitGemm().run(model), TurnProduct().run(model)]
    settle_types(model)
    return _Imported(
        model,
        LiftFloats().run(model).sources,
        {name: source for result in rearranged for name, source in result.moved.items()},
        frozenset().union(*(result.unseen for result in rearranged)),
    )


def _joined(results: Iterable[PassResult]) -> dict[str, tuple[str, ...]]:
    """Node -> all source nodes it stands for after every pass, itself first."""
    fused: dict[str, tuple[str, ...]] = {}
    for result in results:
        for name, members in result.merged.items():
            before = (source for member in members for source in fused.pop(member, (member,)))
            fused[name] = tuple(dict.fromkeys((name, *before)))
    return fused
