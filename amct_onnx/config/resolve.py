"""A request and the facts about a model -> one resolved config."""

from __future__ import annotations

from collections.abc import Iterator

from amct_onnx.config.bounds import bound_findings
from amct_onnx.config.facts import ConfigurableLayer, ModelFacts
from amct_onnx.config.layer_options import DEFAULT_ORIGIN, activation_options, layer_options
from amct_onnx.config.limits import limits, without
from amct_onnx.config.misfits import Misfits
from amct_onnx.config.name_rules import name_findings
from amct_onnx.config.options import LayerOptions, TensorOptions, WeightAlgorithm, WeightOptions
from amct_onnx.config.quant_config import LayerConfig, QuantConfig
from amct_onnx.config.request import ACTIVATION_BITS, ADA, NUQ, InputWish, Request, Setting, Wish, origin
from amct_onnx.errors import ConfigError, NothingToCompressError
from amct_onnx.findings import Finding, Severity, by_reason, raise_findings

_GLOBAL_DEFAULTS = {
    "batch_num": 1,
    "activation_offset": True,
    "joint_quant": False,
    "do_fusion": True,
    "force_fp16_quant": False,
}
_STAND_INS = {
    ADA: "is accepted, but rounding is not learned yet: weights get the scales of least squared error (mse)",
    NUQ: "is accepted, but weights are quantized uniformly (arq_quantize)",
}


def resolve(request: Request, facts: ModelFacts) -> QuantConfig:
    """Resolve a config for a model.

    Raises:
        ConfigError: one that lists everything that is wrong with the config, alone or with this model.
        NothingToCompressError: the model has nothing that a config could quantize.
    """
    if not facts.layers and not request.inputs:
        reasons = by_reason((f"'{name}'", reason) for name, reason in facts.refused.items())
        raise NothingToCompressError(f"no layer of the model can be quantized; {reasons or 'it has none of the types'}")
    return _Resolver(request, facts).resolve()


class _Resolver:
    """Goes over the layers of a model once."""

    def __init__(self, request: Request, facts: ModelFacts) -> None:
        self.request = request
        self.facts = facts
        self.types = {named.name: wish for named, wish in request.types}
        self.layers = {named.name: wish for named, wish in request.layers}
        self.skipped = {named.name: named.line for named in request.skip_layers}
        self.skipped_types = {named.name: named.line for named in request.skip_types}
        self.listed = None if request.listed is None else {named.name for named in request.listed}
        self.misfits = Misfits()

    def resolve(self) -> QuantConfig:
        request = self.request
        findings = [*request.findings, *bound_findings(request), *name_findings(request, self.facts)]
        findings += [finding for entry in request.inputs for finding in _input_findings(entry)]
        layers = {layer.name: self._layer(layer) for layer in self.facts.layers.values()}
        findings += self.misfits.findings()
        findings.sort(key=lambda finding: finding.line or 0)
        raise_findings(ConfigError, request.source, findings)
        # Last, since any other fault may be the cause of it.
        raise_findings(ConfigError, request.source, self._nothing_left(layers))
        settings = {name: request.value(name, default) for name, default in _GLOBAL_DEFAULTS.items()}
        return QuantConfig(
            layers=layers,
            tensors=tuple(self._tensor(entry) for entry in request.inputs),
            skip_fusion_layers=tuple(named.name for named in request.skip_fusion_layers),
            skip_layers=tuple(self.skipped),
            skip_types=tuple(self.skipped_types),
            default=self._default(),
            origins={name: self._global_origin(name) for name in (*_GLOBAL_DEFAULTS, "skip_fusion_layers")},
            source=request.source,
            warnings=tuple(dict.fromkeys([*findings, *_stand_ins(request)])),
            **settings,
        )

    def _layer(self, layer: ConfigurableLayer) -> LayerConfig:
        wish = self._wish(layer)
        reason = self._reason_against(layer)
        settings = dict(wish.settings) if wish is not None else {}
        for limit in limits(layer, wish) if wish is not None else ():
            settings = without(settings, limit)
            # Of a block for everything, what concerns weights is not meant for a layer that has none.
            is_meant = layer.has_weight or not limit.name.startswith("weight.")
            if wish is not None and not reason and (wish.strict or is_meant):
                self.misfits.add(wish, limit, layer)
        options, origins = layer_options(layer, wish, settings, self.request)
        return LayerConfig(op_type=layer.op_type, options=options, enabled=not reason, reason=reason, origins=origins)

    def _wish(self, layer: ConfigurableLayer) -> Wish | None:
        """The one block that counts for a layer; blocks are replaced, never merged."""
        legacy = self.request.matrices if layer.kernel_rank is None else self.request.kernels
        of_all = self.request.common or (legacy if layer.has_weight else None)
        return self.layers.get(layer.name) or self.types.get(layer.op_type) or of_all

    def _reason_against(self, layer: ConfigurableLayer) -> str:
        if layer.name in self.skipped:
            return origin("skip_layers", self.skipped[layer.name])
        if layer.op_type in self.skipped_types:
            return origin("skip_layer_types", self.skipped_types[layer.op_type])
        if self.listed is None or layer.name in self.listed:
            return ""
        wish = self.layers.get(layer.name)
        return "the config does not list it" if wish is None else f"not enabled, line {wish.line}"

    def _nothing_left(self, layers: dict[str, LayerConfig]) -> Iterator[Finding]:
        if self.request.inputs or any(layer.enabled for layer in layers.values()):
            return
        types = {layer.op_type for layer in layers.values()}
        if self.listed is not None:
            yield Finding(None, "", 'it quantizes no layer of the model; set "quant_enable":true for at least one')
        elif types <= self.skipped_types.keys():
            yield Finding(None, "", "skip_layer_types leaves no layer to quantize; delete one of its types")
        else:
            yield Finding(None, "", "skip_layers leaves no layer to quantize; delete one of its names")

    def _tensor(self, entry: InputWish) -> TensorOptions:
        activation, _ = activation_options(entry.wish, entry.wish.settings, self.request)
        return TensorOptions(node=entry.node, input_index=entry.index, activation=activation)

    def _default(self) -> LayerOptions:
        common = self.request.common
        settings = {} if common is None else {n: s for n, s in common.settings.items() if n != ACTIVATION_BITS}
        activation, _ = activation_options(common, settings, self.request)
        return LayerOptions(activation=activation, weight=WeightOptions(algorithm=WeightAlgorithm.ARQ))

    def _global_origin(self, name: str) -> str:
        if name == "skip_fusion_layers":
            lines = [named.line for named in self.request.skip_fusion_layers]
            return origin(name, lines[0]) if lines else DEFAULT_ORIGIN
        setting = self.request.settings.get(name)
        return DEFAULT_ORIGIN if setting is None else origin(setting.key, setting.line)


def _input_findings(entry: InputWish) -> Iterator[Finding]:
    bits: Setting | None = entry.wish.settings.get(ACTIVATION_BITS)
    if bits is not None and bits.value != 8:
        message = f"{bits.key} asks for {bits.value} bits, but inputs are quantized to 8 bits only; correct it"
        yield Finding(bits.line, entry.node, message)


def _stand_ins(request: Request) -> Iterator[Finding]:
    """What is accepted, but done another way; one warning each."""
    joint = request.settings.get("joint_quant")
    if joint is not None and joint.value:
        message = "joint_quant is accepted, but without effect: element-wise layers keep scales of their own"
        yield Finding(joint.line, "", message, Severity.WARNING)
    for algorithm, message in _STAND_INS.items():
        lines = [
            setting.line
            for wish in request.wishes()
            for setting in wish.settings.values()
            if setting.stands_for == algorithm
        ]
        if lines:
            more = "" if len(lines) == 1 else f" (here and {len(lines) - 1} times more)"
            yield Finding(lines[0], "", f"{algorithm}{more} {message}", Severity.WARNING)
