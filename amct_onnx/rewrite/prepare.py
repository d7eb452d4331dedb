"""What happens to every model first, the same way when a plan is made and when it is applied."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from onnx import ModelProto

from amct_onnx.graph import Model, import_model, name_nodes
from amct_onnx.graph.op_table import spread_types
from amct_onnx.graph.opset import raise_opset
from amct_onnx.passes.balance import BalanceLayers, Divided, Factors
from amct_onnx.passes.base import PassTiming, Refusal, run_pipeline
from amct_onnx.passes.fuse_conv_bn import FuseConvBn


@dataclass(frozen=True)
class Prepared:
    """A named and fused model.

    Attributes:
        model: the graph to work on; take a copy before changing it.
        fused: layer name -> names of all source nodes it now stands for.
        refusals: fusions that could not be done.
        timings: seconds of each pass.
        skip_fusion: convolutions whose BatchNormalization stayed.
        balance: balance factors that were applied, layer name -> float32 [channels_in].
        divided: tensors that hold another's values divided by such factors.
        folded: layers whose results are divided -> by what, float32 [channels_out]; scales in a record are those of
            the undivided weights.
        multiplied: names of the Mul nodes that divide where no layer does.
    """

    model: Model
    fused: dict[str, tuple[str, ...]]
    refusals: tuple[Refusal, ...]
    timings: tuple[PassTiming, ...]
    skip_fusion: frozenset[str]
    balance: Mapping[str, Factors] = field(default_factory=dict)
    divided: Mapping[str, Divided] = field(default_factory=dict)
    folded: Mapping[str, Factors] = field(default_factory=dict)
    multiplied: frozenset[str] = frozenset()

    def at_opset(self, minimum: int) -> Prepared:
        """The same model with the default operator set raised to `minimum` where it is older.

        Raises:
            ModelError: the model cannot be converted.
        """
        raised = raise_opset(self.model.proto, minimum, self.model.base_dir)
        if raised is self.model.proto:
            return self
        return prepare(raised, self.model.base_dir, skip_fusion=self.skip_fusion, balance=self.balance)


def prepare(
    proto: ModelProto,
    base_dir: Path | None,
    *,
    skip_fusion: Collection[str] = (),
    balance: Mapping[str, Factors] | None = None,
) -> Prepared:
    """Import, name, spread element types, fuse and balance.

    Args:
        proto: the source model, never changed.
        base_dir: folder of its external weights.
        skip_fusion: convolutions whose BatchNormalization stays.
        balance: layer name -> balance factors, float32 [channels_in].
    """
    model = import_model(proto, base_dir)
    name_nodes(model)
    spread_types(model)
    results, timings = run_pipeline(model, [FuseConvBn(skip=frozenset(skip_fusion))])
    fused = {name: members for result in results for name, members in result.merged.items()}
    refusals = tuple(refusal for result in results for refusal in result.refusals)
    prepared = Prepared(model, fused, refusals, tuple(timings), frozenset(skip_fusion))
    return _balanced(prepared, balance) if balance else prepared


def _balanced(prepared: Prepared, balance: Mapping[str, Factors]) -> Prepared:
    """Balance a model that nothing else has been done to since it was fused."""
    begin = time.perf_counter()
    result = BalanceLayers(balance).run(prepared.model)
    timing = PassTiming("BalanceLayers", time.perf_counter() - begin, len(result.changed))
    return replace(
        prepared,
        timings=(*prepared.timings, timing),
        balance=balance,
        divided=result.divided,
        folded=result.folded,
        multiplied=result.multiplied,
    )
