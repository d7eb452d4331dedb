"""Blocks of a retrain config -> what they ask for."""

from __future__ import annotations

from amct_onnx.config.retrain.bounds import BITS, no_width, out_of_bounds
from amct_onnx.config.retrain.cfg_fields import DATA, PRUNE, WEIGHT
from amct_onnx.config.retrain.options import DataQuant, FilterPruning, Pruning, SelectivePruning, WeightQuant
from amct_onnx.config.retrain.request import Asked, Wishes
from amct_onnx.config.shorten import shortest
from amct_onnx.findings import Finding
from amct_onnx.prototext import Block


class BlockReader:
    """Reads blocks; what is wrong with them is collected in ``findings``."""

    def __init__(self) -> None:
        self.findings: list[Finding] = []

    def wishes(self, block: Block, where: str = "") -> Wishes:
        """The parts of a block.

        Args:
            block: the whole config, or the entry of a type or layer.
            where: what holds them; empty for the whole config.
        """
        prune, data, weight = (block.get(name) for name in (PRUNE, DATA, WEIGHT))
        return Wishes(
            prune=None if prune is None else Asked(self._pruning(prune), where or PRUNE, prune.line),
            data=None if data is None else Asked(self._data(data), where or DATA, data.line),
            weight=None if weight is None else Asked(self._weight(weight), where or WEIGHT, weight.line),
        )

    def check_bounds(self, block: Block, *names: str) -> None:
        """Note the fields of a block whose values are not legal."""
        for name in names:
            if message := out_of_bounds(name, block.get(name)):
                self.fault(block.line_of(name), message)

    def fault(self, line: int | None, message: str) -> None:
        """Note what is wrong."""
        self.findings.append(Finding(line, "", message))

    def _pruning(self, block: Block) -> Pruning:
        for other, line in block.replaced.items():
            name = next(iter(block.fields))
            both = f"{PRUNE} holds {name} and, on line {line}, {other}, but a block prunes in one way"
            self.fault(block.line_of(name), f"{both}; delete one, or give it to some layers in an override")
        selective: Block | None = block.get("n_out_of_m_pruner")
        if selective is not None:
            return self._selective(selective)
        filters: Block | None = block.get("filter_pruner")
        inner: Block | None = None if filters is None else filters.get("balanced_l2_norm_filter_prune")
        if inner is None:
            wanted = "filter_pruner { balanced_l2_norm_filter_prune { prune_ratio: 0.2 } }"
            self.fault(block.line, f"prune_config names no algorithm; write {wanted}")
            return SelectivePruning()
        self.check_bounds(inner, "prune_ratio")
        aligned = inner.get("ascend_optimized")
        return FilterPruning(
            ratio=shortest(inner.get("prune_ratio") or 0.0), ascend_optimized=True if aligned is None else aligned
        )

    def _selective(self, block: Block) -> SelectivePruning:
        inner: Block | None = block.get("l1_selective_prune")
        if inner is None:
            self.fault(block.line, "n_out_of_m_pruner names no algorithm; write l1_selective_prune {} into it")
            return SelectivePruning()
        default = SelectivePruning()
        return SelectivePruning(
            n_out_of_m=inner.get("n_out_of_m_type") or default.n_out_of_m,
            update_freq=inner.get("update_freq") or default.update_freq,
        )

    def _data(self, block: Block) -> DataQuant:
        inner: Block | None = block.get("ulq_quantize")
        if inner is None:
            self.fault(block.line, f"{DATA} names no algorithm; write ulq_quantize {{}} into it")
            return DataQuant()
        clip: Block = inner.get("clip_max_min") or Block(inner.line)
        self.check_bounds(clip, "clip_max", "clip_min")
        return DataQuant(
            bits=self._bits(inner, "activations"),
            clip_max=clip.get("clip_max"),
            clip_min=clip.get("clip_min"),
            fixed_min=inner.get("fixed_min"),
        )

    def _weight(self, block: Block) -> WeightQuant:
        algorithm = next((name for name in ("arq_retrain", "ulq_retrain") if name in block.fields), None)
        if algorithm is None:
            self.fault(block.line, f"{WEIGHT} names no algorithm; write arq_retrain {{}} or ulq_retrain {{}} into it")
            return WeightQuant(algorithm="arq_retrain")
        inner: Block = block.get(algorithm)
        return WeightQuant(
            algorithm=algorithm, bits=self._bits(inner, "weights"), channel_wise=inner.get("channel_wise")
        )

    def _bits(self, block: Block, what: str) -> int:
        name = block.get("dst_type")
        if message := no_width(name, what):
            self.fault(block.line_of("dst_type"), message)
            return 8
        return BITS[name or "INT8"]
