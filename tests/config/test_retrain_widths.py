"""``dst_type`` of retrain configs: which widths layers take, what they get instead, and what is refused."""

from __future__ import annotations

import json

import pytest

from amct_onnx.config import ConfigurableLayer, ModelFacts
from amct_onnx.config.retrain import (
    RetrainConfig,
    RetrainFacts,
    TrainableLayer,
    format_retrain_json,
    parse_retrain_request,
    resolve_retrain,
)
from amct_onnx.config.retrain.quantize import quantization_of
from amct_onnx.errors import ConfigError

WIDE = {"activation_bits": frozenset({8, 16}), "weight_bits": frozenset({4, 8}), "channels_in": 8}
QUANTIZABLE = {
    "conv": ConfigurableLayer(name="conv", op_type="Conv", kernel_rank=2, per_channel=True, **WIDE),
    "odd": ConfigurableLayer(name="odd", op_type="Conv", kernel_rank=2, per_channel=True, **{**WIDE, "channels_in": 3}),
    "fc": ConfigurableLayer(name="fc", op_type="Gemm"),
    "pool": ConfigurableLayer(name="pool", op_type="AveragePool", kernel_rank=2, has_weight=False),
}
FACTS = RetrainFacts(
    layers={name: TrainableLayer(op_type=of.op_type, per_channel=of.per_channel) for name, of in QUANTIZABLE.items()},
    layer_types=("Conv", "Gemm", "AveragePool"),
    prunable_types=("Conv", "Gemm"),
    quantization=ModelFacts(layers=QUANTIZABLE),
)


def resolved(text: str, source: str = "my.cfg") -> RetrainConfig:
    return resolve_retrain(parse_retrain_request(text, source=source), FACTS)


def weight(width: str) -> str:
    return f"retrain_weight_quant_config {{ arq_retrain {{ dst_type: {width} }} }}"


def data(width: str) -> str:
    return f"retrain_data_quant_config {{ ulq_quantize {{ dst_type: {width} }} }}"


def of_layer(name: str, inner: str) -> str:
    return f'override_layer_configs {{ layer_name: "{name}" {inner} }}'


def test_global_blocks_reach_the_layers_that_can() -> None:
    narrow = resolved(weight("INT4"))
    assert {name: layer.weight and layer.weight.bits for name, layer in narrow.layers.items()} == {
        "conv": 4,
        "odd": 8,
        "fc": 8,
        "pool": 8,
    }
    assert [str(warning) for warning in narrow.warnings] == [
        'line 1: dst_type INT4 is not possible for "odd": 4-bit weights need an even number of input channels and a '
        "single group; it gets 8 bits",
        'line 1: dst_type INT4 is not possible for "fc": weights of a Gemm take 8 bits; it gets 8 bits',
    ]
    wide = resolved(data("INT16"))
    assert [layer.data and layer.data.bits for layer in wide.layers.values()] == [16, 16, 8, 8]
    assert len(wide.warnings) == 2


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (of_layer("odd", weight("INT4")), 'dst_type INT4 is not possible for "odd": 4-bit weights need an even number'),
        (of_layer("fc", weight("INT4")), 'is not possible for "fc": weights of a Gemm take 8 bits; correct override'),
        (of_layer("fc", data("INT16")), 'dst_type INT16 is not possible for "fc": activations of a Gemm take 8 bits'),
        (of_layer("pool", weight("INT4")), 'dst_type INT4 is not possible for "pool"'),
        (
            f'override_layer_types {{ layer_type: "Conv" {weight("INT4")} }}',
            'dst_type INT4 is not possible for "odd": .*; correct override_layer_types "Conv"',
        ),
        (
            of_layer("conv", f"{data('INT16')} {weight('INT4')}"),
            "INT16 activations go with INT8 weights, not with INT4",
        ),
        (f"{data('INT16')} {of_layer('conv', weight('INT4'))}", '"conv": INT16 activations go with INT8 weights'),
    ],
)
def test_what_an_override_cannot_have_is_refused(text: str, words: str) -> None:
    with pytest.raises(ConfigError, match=rf"^my\.cfg, line 1.*: .*{words}|^my\.cfg, line 1, {words}"):
        resolved(text)


@pytest.mark.parametrize(
    ("text", "source"),
    [
        (data("INT4"), "my.cfg"),
        (of_layer("conv", weight("INT16")), "my.cfg"),
        (json.dumps({"conv": {"retrain_enable": True, "retrain_data_config": {"dst_type": "INT4"}}}), "my.json"),
    ],
)
def test_what_no_layer_takes_is_told_once(text: str, source: str) -> None:
    with pytest.raises(
        ConfigError, match=r"^my\.\w+, line 1.*dst_type is INT\d+, but (activations|weights) are quantized"
    ):
        resolved(text, source)


def test_the_same_in_json() -> None:
    layer = {"retrain_enable": True, "retrain_weight_config": {"algo": "arq_retrain", "dst_type": "INT4"}}
    assert resolved(json.dumps({"conv": layer})).layers["conv"].weight.bits == 4  # type: ignore[union-attr]
    with pytest.raises(ConfigError, match=r'^my\.json, line 1: dst_type INT4 is not possible for "odd": .*; correct'):
        resolved(json.dumps({"odd": layer}), "my.json")


@pytest.mark.parametrize("text", [weight("INT4"), data("INT16")])
def test_widths_survive_the_way_through_json(text: str) -> None:
    config = resolved(text)
    again = resolved(format_retrain_json(config), "my.json")
    assert [(of.data, of.weight) for of in again.layers.values()] == [
        (of.data, of.weight) for of in config.layers.values()
    ]
    assert again.warnings == ()


def test_channels_that_go_may_take_the_width_along() -> None:
    """Of 8 input channels 5 may be left, and two 4-bit weights share a byte."""
    config = resolved(weight("INT4"))
    left = ModelFacts(layers={**QUANTIZABLE, "conv": QUANTIZABLE["odd"]})
    found = quantization_of(config, left)
    assert found.layers["conv"].options.weight.bits == 8
    assert [str(warning) for warning in found.warnings] == [
        '"conv": dst_type INT4 is not possible once channels are gone: 4-bit weights need an even number of input '
        "channels and a single group; it gets 8 bits"
    ]
    assert quantization_of(config, ModelFacts(layers=QUANTIZABLE)).layers["conv"].options.weight.bits == 4
