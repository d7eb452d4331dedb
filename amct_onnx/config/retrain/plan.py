"""A retrain config resolved against a model: what happens to every layer, and which line says so."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from amct_onnx.config.retrain.options import DataQuant, FilterPruning, SelectivePruning, WeightQuant
from amct_onnx.errors import ConfigError
from amct_onnx.findings import Finding

_SKIP_FEWER = "skip fewer, or override others"
_NO_PRUNING = "holds no prune_config, neither for all layers nor in an override; add one"


@dataclass(frozen=True, kw_only=True)
class LayerRetrain:
    """One layer.

    Attributes:
        op_type: its ONNX operator.
        pruning: how its output channels are pruned; None: they stay.
        sparsity: how its weights are thinned out; None: they stay.
        skipped: the list that leaves it out of pruning, and its line; empty where none does.
        why_whole: why it is neither pruned nor thinned out; empty where it is.
        why_none: why no channel goes, although it is pruned; empty where some do, or where that was not looked at.
        why_dense: why its weights are not thinned out; empty where they are.
        data, weight: how it is quantized; None: it stays float.
        why_float: why it is not quantized; empty where it is.
        origins: ``prune``, ``data`` and ``weight`` -> where the choice stands.
        shares: the other layers whose channels go with its own.
    """

    op_type: str
    pruning: FilterPruning | None = None
    sparsity: SelectivePruning | None = None
    skipped: str = ""
    why_whole: str = ""
    why_none: str = field(default="", compare=False)
    why_dense: str = ""
    data: DataQuant | None = None
    weight: WeightQuant | None = None
    why_float: str = ""
    origins: Mapping[str, str] = field(default_factory=dict, compare=False, repr=False)
    shares: tuple[str, ...] = field(default=(), compare=False)

    @property
    def is_quantized(self) -> bool:
        """Whether it is quantized."""
        return self.data is not None or self.weight is not None


@dataclass(frozen=True, kw_only=True)
class RetrainConfig:
    """Everything that a retrain config says about one model; nothing in it is inherited any more.

    Attributes:
        layers: every layer, by name, in graph order.
        batch_num: number of feeds for quantization.
        force_fp16_quant: whether scales are rounded to float16.
        asks_pruning: whether it has a block that prunes channels, for whatever layer.
        asks_sparsity: whether it has one that thins weights out.
        asks_quantization: whether it has one that quantizes.
        source: the file.
        warnings: what reading and resolving found.
    """

    layers: Mapping[str, LayerRetrain]
    batch_num: int = 1
    force_fp16_quant: bool = False
    asks_pruning: bool = True
    asks_sparsity: bool = False
    asks_quantization: bool = field(default=False, compare=False)
    source: str = field(default="", compare=False)
    warnings: tuple[Finding, ...] = field(default=(), compare=False)

    def pruned(self) -> dict[str, FilterPruning]:
        """The layers whose channels are pruned.

        Raises:
            ConfigError: there is none.
        """
        found = self.with_pruning()
        if found:
            return found
        if self.asks_pruning:
            raise ConfigError(f"{self._no_layer_to_prune()}; {_SKIP_FEWER}")
        if self.asks_sparsity:
            raise ConfigError(
                f"{self.source} asks for 4:2 sparsity alone (n_out_of_m_pruner), which `amct_onnx sparsify` applies; "
                "add a filter_pruner to prune channels"
            )
        raise ConfigError(f"{self.source} {_NO_PRUNING}")

    def thinned(self) -> dict[str, SelectivePruning]:
        """The layers whose weights are thinned out.

        Raises:
            ConfigError: there is none.
        """
        found = self.sparse()
        if found:
            return found
        if self.asks_sparsity:
            raise ConfigError(f"{self._no_layer_to_thin_out()}; {_SKIP_FEWER}")
        if self.asks_pruning:
            raise ConfigError(
                f"{self.source} prunes channels alone (filter_pruner), which `amct_onnx prune` applies; "
                "add an n_out_of_m_pruner to thin weights out 4:2"
            )
        raise ConfigError(f"{self.source} {_NO_PRUNING}")

    def check_removes(self) -> None:
        """Raise :class:`ConfigError` where neither channels nor weights of any layer go."""
        if self.with_pruning() or self.sparse():
            return
        if self.asks_sparsity and not self.asks_pruning:
            self.thinned()
        self.pruned()

    def check_quantizes(self) -> None:
        """Raise :class:`ConfigError` where no layer is quantized."""
        if not self.quantized():
            raise ConfigError(f"{self._no_layer_to_quantize()}; {_SKIP_FEWER}")

    def idle_parts(self) -> tuple[str, ...]:
        """What it asks for although it leaves no layer for it: a sentence for each of channels, weights and scales."""
        channels = [self._no_layer_to_prune()] if self.asks_pruning and not self.with_pruning() else []
        weights = [self._no_layer_to_thin_out()] if self.asks_sparsity and not self.sparse() else []
        scales = [self._no_layer_to_quantize()] if self.asks_quantization and not self.quantized() else []
        return (*channels, *weights, *scales)

    def _no_layer_to_prune(self) -> str:
        return f"{self.source} leaves no layer to prune ({_first_of(one.why_whole for one in self.layers.values())})"

    def _no_layer_to_thin_out(self) -> str:
        return f"{self.source} leaves no layer to thin out ({_first_of(one.why_dense for one in self.layers.values())})"

    def _no_layer_to_quantize(self) -> str:
        return f"{self.source} leaves no layer to quantize ({_first_of(one.why_float for one in self.layers.values())})"

    def with_pruning(self) -> dict[str, FilterPruning]:
        """The layers whose channels are pruned; maybe none."""
        return {name: layer.pruning for name, layer in self.layers.items() if layer.pruning is not None}

    def sparse(self) -> dict[str, SelectivePruning]:
        """The layers whose weights are thinned out; maybe none."""
        return {name: layer.sparsity for name, layer in self.layers.items() if layer.sparsity is not None}

    def quantized(self) -> tuple[str, ...]:
        """The layers that are quantized."""
        return tuple(name for name, layer in self.layers.items() if layer.is_quantized)


def _first_of(reasons: Iterable[str]) -> str:
    """Why layers stay as they are, the first few reasons."""
    return "; ".join(list(dict.fromkeys(filter(None, reasons)))[:3]) or "the model has no layer"
