"""What happens to every model first, the same way when a plan is made and when it is applied."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from onnx import ModelProto

from amct_onnx.graph import Model, import_model, name_nodes
from amct_onnx.graph.op_table import spread_types
from amct_onnx.graph.opset import raise_opset
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
    """

    model: Model
    fused: dict[str, tuple[str, ...]]
    refusals: tuple[Refusal, ...]
    timings: tuple[PassTiming, ...]
    skip_fusion: frozenset[str]

    def at_opset(self, minimum: int) -> Prepared:
        """The same model with the default operator set raised to `minimum` where it is older.

        Raises:
            ModelError: the model cannot be converted.
        """
        raised = raise_opset(self.model.proto, minimum, self.model.base_dir)
        if raised is self.model.proto:
            return self
        return prepare(raised, self.model.base_dir, skip_fusion=self.skip_fusion)


def prepare(proto: ModelProto, base_dir: Path | None, *, skip_fusion: Collection[str] = ()) -> Prepared:
    """Import, name, spread element types and fuse.

    Args:
        proto: the source model, never changed.
        base_dir: folder of its external weights.
        skip_fusion: convolutions whose BatchNormalization stays.
    """
    model = import_model(proto, base_dir)
    name_nodes(model)
    spread_types(model)
    results, timings = run_pipeline(model, [FuseConvBn(skip=frozenset(skip_fusion))])
    fused = {name: members for result in results for name, members in result.merged.items()}
    refusals = tuple(refusal for result in results for refusal in result.refusals)
    return Prepared(model, fused, refusals, tuple(timings), frozenset(skip_fusion))
