"""Retrain configs in JSON: what each key means, what is refused, and that nothing is lost on the way there and back."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from amct_onnx.config.retrain import (
    DataQuant,
    FilterPruning,
    RetrainConfig,
    RetrainFacts,
    SelectivePruning,
    TrainableLayer,
    WeightQuant,
    format_retrain_json,
    is_retrain_config,
    parse_retrain_request,
    resolve_retrain,
)
from amct_onnx.errors import ConfigError

CONV = {"op_type": "Conv", "kernel_rank": 2, "per_channel": True}
TYPES = ("Conv", "Gemm", "AveragePool")
FACTS = RetrainFacts(
    layers={
        "conv1": TrainableLayer(**CONV),
        "conv2": TrainableLayer(**CONV),
        "left": TrainableLayer(**CONV, shares=("right",), carriers=("deep",)),
        "right": TrainableLayer(**CONV, shares=("left",), carriers=("deep",)),
        "deep": TrainableLayer(**CONV, stays="its channels go with those that it reads", dense="it is depthwise"),
        "fc": TrainableLayer(op_type="Gemm"),
        "pool": TrainableLayer(op_type="AveragePool", kernel_rank=2),
    },
    nodes={"relu": "Relu"},
    layer_types=TYPES,
    prunable_types=("Conv", "Gemm"),
    sparse_types=("Conv", "Gemm"),
)
EVERYTHING = """{
    "version":1,
    "fakequant_precision_mode":"FORCE_FP16_QUANT",
    "batch_num":4,
    "conv1":{
        "retrain_enable":true,
        "retrain_data_config":{
            "algo":"ulq_quantize",
            "clip_max":6.0,
            "clip_min":-3.5,
            "fixed_min":true,
            "dst_type":"INT8"
        },
        "retrain_weight_config":{
            "algo":"ulq_retrain",
            "channel_wise":false,
            "dst_type":"INT8"
        },
        "regular_prune_enable":true,
        "regular_prune_config":{
            "prune_type":"filter_prune",
            "algo":"balanced_l2_norm_filter_prune",
            "prune_ratio":0.3,
            "ascend_optimized":false
        }
    },
    "conv2":{
        "retrain_enable":false,
        "regular_prune_enable":true,
        "regular_prune_config":{
            "prune_type":"selective_prune",
            "algo":"l1_selective_prune",
            "n_out_of_m_type":"M4N2",
            "update_freq":2
        }
    },
    "deep":{
        "retrain_enable":false
    },
    "fc":{
        "retrain_enable":true,
        "retrain_data_config":{
            "algo":"ulq_quantize",
            "dst_type":"INT8"
        },
        "retrain_weight_config":{
            "algo":"arq_retrain",
            "channel_wise":false,
            "dst_type":"INT8"
        },
        "regular_prune_enable":false
    },
    "left":{
        "retrain_enable":false
    },
    "pool":{
        "retrain_enable":false
    },
    "right":{
        "retrain_enable":false
    }
}"""


def resolved(text: str, source: str = "my.json") -> RetrainConfig:
    return resolve_retrain(parse_retrain_request(text, source=source), FACTS)


def of_layer(name: str, **keys: Any) -> str:
    return json.dumps({"version": 1, "batch_num": 1, name: keys}, indent=1)


def test_what_every_key_means() -> None:
    config = resolved(EVERYTHING)
    assert (config.batch_num, config.force_fp16_quant, config.warnings) == (4, True, ())
    first, second, fc = (config.layers[name] for name in ("conv1", "conv2", "fc"))
    assert first.data == DataQuant(clip_max=6.0, clip_min=-3.5, fixed_min=True)
    assert first.weight == WeightQuant(algorithm="ulq_retrain", channel_wise=False)
    assert first.pruning == FilterPruning(ratio=0.3, ascend_optimized=False)
    assert first.origins == {
        "prune": 'layer "conv1", line 20',
        "data": 'layer "conv1", line 7',
        "weight": 'layer "conv1", line 14',
    }
    assert (second.sparsity, second.why_float) == (SelectivePruning(update_freq=2), "retrain_enable, line 28")
    assert (fc.data, fc.weight) == (DataQuant(), WeightQuant(algorithm="arq_retrain", channel_wise=False))
    assert (fc.skipped, config.layers["left"].skipped) == ("regular_prune_enable, line 51", "")


def test_it_is_written_as_amct_writes_it() -> None:
    """Keys in the order of AMCT's files, an indent of four, no blank behind colons, layers by name."""
    assert format_retrain_json(resolved(EVERYTHING)) == EVERYTHING


def test_what_an_enabled_layer_leaves_out_is_filled_in() -> None:
    layer = resolved(of_layer("conv1", retrain_enable=True)).layers["conv1"]
    assert (layer.data, layer.weight) == (DataQuant(), WeightQuant(algorithm="arq_retrain", channel_wise=True))
    assert layer.origins == {"data": "default", "weight": "default"}
    empty = resolved(of_layer("fc", retrain_enable=True, retrain_data_config={}, retrain_weight_config={})).layers["fc"]
    assert (empty.data, empty.weight) == (DataQuant(), WeightQuant(algorithm="arq_retrain", channel_wise=False))


def test_blocks_without_their_switch_count_for_nothing_and_say_so() -> None:
    filters = {"prune_type": "filter_prune", "prune_ratio": 0.5}
    config = resolved(of_layer("conv1", retrain_data_config={}, regular_prune_config=filters))
    assert (config.layers["conv1"].data, config.layers["conv1"].pruning) == (None, None)
    assert [str(warning) for warning in config.warnings] == [
        'line 4, "conv1": retrain_enable is missing, so the layer stays float; add "retrain_enable":true to quantize '
        "it",
        'line 4, "conv1": regular_prune_enable is missing, so the layer is not pruned; add '
        '"regular_prune_enable":true to prune it',
    ]


def test_what_a_disabled_layer_holds_does_not_count() -> None:
    block = {"retrain_enable": False, "retrain_weight_config": {"channel_wise": True}}
    assert resolved(of_layer("fc", **block)).layers["fc"].why_float == "retrain_enable, line 5"


def test_retrain_configs_are_known_by_their_keys() -> None:
    assert is_retrain_config(EVERYTHING)
    assert is_retrain_config(of_layer("conv1", regular_prune_enable=False))
    assert not is_retrain_config(of_layer("conv1", quant_enable=True))
    assert not is_retrain_config('{"version":1}')
    assert not is_retrain_config('{"version":1')


DATA = {"algo": "ulq_quantize", "dst_type": "INT8"}
FILTERS = {"prune_type": "filter_prune", "algo": "balanced_l2_norm_filter_prune", "prune_ratio": 0.5}
SELECTIVE = {"prune_type": "selective_prune", "algo": "l1_selective_prune"}


def data(**keys: Any) -> str:
    return of_layer("conv1", retrain_enable=True, retrain_data_config={**DATA, **keys})


def weight(name: str = "conv1", **keys: Any) -> str:
    return of_layer(name, retrain_enable=True, retrain_weight_config=keys)


def pruning(block: dict[str, Any], name: str = "conv1", **keys: Any) -> str:
    return of_layer(name, regular_prune_enable=True, regular_prune_config={**block, **keys})


def without(block: dict[str, Any], key: str) -> dict[str, Any]:
    return {name: value for name, value in block.items() if name != key}


FAULTS = [
    # The file.
    ('{"version": 2, "batch_num": 1}', 1, "", "version is 2, but only 1 is known"),
    ('{"batch_num": 0}', 1, "", "batch_num is 0, but it is at least 1"),
    ('{"batch_num": true}', 1, "", "batch_num is a whole number, not true or false"),
    ('{"fakequant_precision_mode": "FP16"}', 1, "", "it is DEFAULT or FORCE_FP16_QUANT"),
    ('{"batch_mun": 2}', 1, "", "batch_mun is neither a parameter nor a layer.* did you mean batch_num"),
    ('{"conv1": {"retrain_enable": false},\n"conv1": {}}', 2, "", "conv1 stands twice in the file; delete one"),
    ("[]", 1, "", "the file is an object, not a list"),
    ("\ufeff[]", 1, "", "the file is an object, not a list"),
    ('{"conv1": {"retrain_enable": null}}', 1, "conv1", "retrain_enable is true or false, not null"),
    # Layers.
    (of_layer("conv", retrain_enable=True), 4, "conv", 'the config names it, .* did you mean "conv[12]"'),
    (of_layer("relu", retrain_enable=False), 4, "relu", "the config names it, but a Relu is no layer"),
    (of_layer("conv1", retrain_enabled=True), 5, "conv1", "did you mean retrain_enable"),
    (of_layer("conv1", retrain_enable=1), 5, "conv1", "retrain_enable is true or false, not a whole number"),
    (of_layer("conv1", retrain_enable=True, retrain_data_config=3), 6, "conv1", "is an object, not a whole number"),
    # Data.
    (data(algo="ulq"), 7, "conv1", 'algo is "ulq", but it is ulq_quantize'),
    (data(dst_type="INT4"), 8, "conv1", "dst_type is INT4, but activations are quantized to INT8 or INT16"),
    (data(clip_max=1.0), 9, "conv1", "clip_max stands without clip_min; give both or neither"),
    (data(clip_min=-1.0), 9, "conv1", "clip_min stands without clip_max; give both or neither"),
    (data(clip_max=7, clip_min=-1).replace("7,", "1e999,"), 9, "conv1", "clip_max is inf, but it is a number above"),
    (data(clip_max=0, clip_min=-1), 9, "conv1", "clip_max is 0, but it is a number above 0"),
    (data(clip_max=1, clip_min=1), 10, "conv1", "clip_min is 1, but it is a number below 0"),
    (
        data(clip_max=1, clip_min=0),
        10,
        "conv1",
        "clip_min is 0, but it is .*fixed_min: true lets the range begin at 0",
    ),
    (data(fixed_min="yes"), 9, "conv1", "fixed_min is true or false, not a string"),
    (data(channel_wise=True), 9, "conv1", "channel_wise is no parameter of retrain_data_config"),
    # Weights.
    (weight(algo="arq_quantize"), 7, "conv1", "it is one of arq_retrain, ulq_retrain"),
    (weight(dst_type="INT16"), 7, "conv1", "dst_type is INT16, but weights are quantized to INT4 or INT8"),
    (weight("fc", channel_wise=True), 6, "fc", "channel_wise: true is not possible for a Gemm; write false"),
    # Pruning.
    (of_layer("conv1", regular_prune_enable=True), 5, "conv1", "is true without regular_prune_config; add it"),
    (pruning(without(FILTERS, "prune_type")), 6, "conv1", "prune_type is missing .*; add filter_prune or selective"),
    (pruning(FILTERS, prune_type="filter"), 7, "conv1", "it is one of filter_prune, selective_prune"),
    (pruning(FILTERS, algo="l1_selective_prune"), 8, "conv1", "it is balanced_l2_norm_filter_prune"),
    (pruning(FILTERS, prune_ratio=1), 9, "conv1", "prune_ratio is 1, but it lies above 0 and below 1"),
    (pruning(without(FILTERS, "prune_ratio")), 6, "conv1", "prune_ratio is missing; .* add it"),
    (pruning(FILTERS, update_freq=0), 10, "conv1", "update_freq is no parameter of regular_prune_config"),
    (pruning(SELECTIVE, n_out_of_m_type="M8N4"), 9, "conv1", 'n_out_of_m_type is "M8N4", but it is M4N2'),
    (weight(algo="ulq_retrain").replace('n"\n', 'n",\n"algo": "ulq_retrain"\n'), 8, "conv1", "algo stands twice"),
    (pruning(SELECTIVE, update_freq=-1), 9, "conv1", "update_freq is -1, but it is 0 or more"),
    (pruning(FILTERS, "pool"), 6, "pool", "a AveragePool is not pruned; delete"),
]


@pytest.mark.parametrize(("text", "line", "entry", "words"), FAULTS)
def test_every_fault_names_line_layer_rule_and_remedy(text: str, line: int, entry: str, words: str) -> None:
    named = f', "{entry}"' if entry else ""
    with pytest.raises(ConfigError, match=rf"^my\.json, line {line}{named}: .*{words}"):
        resolved(text)


def test_a_layer_cannot_be_called_like_a_parameter() -> None:
    facts = RetrainFacts(layers={"version": TrainableLayer(**CONV)}, layer_types=TYPES)
    with pytest.raises(ConfigError, match='"version": a layer of the model bears the name of a global parameter'):
        resolve_retrain(parse_retrain_request('{"version":1}', source="my.json"), facts)


def essence(config: RetrainConfig) -> dict[str, Any]:
    """What a config does; lines and reasons are those of its text."""
    layers = {
        name: (layer.pruning, layer.sparsity, bool(layer.skipped), layer.data, layer.weight)
        for name, layer in config.layers.items()
    }
    return {**layers, "batch_num": config.batch_num, "fp16": config.force_fp16_quant}


RATIOS = st.integers(1, 99).map(lambda percent: percent / 100)
BOOLS = st.booleans()
CLIPS = st.floats(1e-3, 1e3).map(lambda value: round(value, 4))


@st.composite
def blocks(draw: st.DrawFn) -> str:
    """Parts of a simple config's block."""
    parts = []
    if draw(BOOLS):
        inner = f"prune_ratio: {draw(RATIOS)} ascend_optimized: {str(draw(BOOLS)).lower()}"
        filters = f"filter_pruner {{ balanced_l2_norm_filter_prune {{ {inner} }} }}"
        selective = f"n_out_of_m_pruner {{ l1_selective_prune {{ update_freq: {draw(st.integers(0, 9))} }} }}"
        parts.append(f"prune_config {{ {draw(st.sampled_from([filters, selective]))} }}")
    if draw(BOOLS):
        clip = f"clip_max_min {{ clip_max: {draw(CLIPS)} clip_min: -{draw(CLIPS)} }}" if draw(BOOLS) else ""
        fixed = f"fixed_min: {str(draw(BOOLS)).lower()}" if draw(BOOLS) else ""
        parts.append(f"retrain_data_quant_config {{ ulq_quantize {{ {clip} {fixed} }} }}")
    if draw(BOOLS):
        wise = "channel_wise: false" if draw(BOOLS) else ""
        algorithm = draw(st.sampled_from(["arq_retrain", "ulq_retrain"]))
        parts.append(f"retrain_weight_quant_config {{ {algorithm} {{ {wise} }} }}")
    return "\n".join(parts)


@st.composite
def simple_configs(draw: st.DrawFn) -> str:
    """A config whose names are known and stand once; blocks may still count for nobody."""
    parts = [draw(blocks()), f"batch_num: {draw(st.integers(1, 9))}"]
    if draw(BOOLS):
        parts.append("fakequant_precision_mode: FORCE_FP16_QUANT")
    names = st.lists(st.sampled_from(sorted(FACTS.layers)), unique=True, max_size=2)
    for name in draw(names):
        parts.append(f'override_layer_configs {{ layer_name: "{name}" {draw(blocks())} }}')
    for name in draw(st.lists(st.sampled_from(TYPES), unique=True, max_size=1)):
        parts.append(f'override_layer_types {{ layer_type: "{name}" {draw(blocks())} }}')
    for field in ("skip_layers", "regular_prune_skip_layers", "quant_skip_layers"):
        parts += [f'{field}: "{name}"' for name in draw(names)]
    return "\n".join(parts)


@settings(max_examples=400, deadline=None)
@given(simple_configs())
def test_from_a_simple_config_to_json_and_back_nothing_is_lost(text: str) -> None:
    try:
        config = resolved(text, "my.cfg")
    except ConfigError:  # a block that counts for nobody
        return
    written = format_retrain_json(config)
    again = resolved(written)
    assert essence(again) == essence(config)
    assert format_retrain_json(again) == written
    assert again.warnings == ()


def test_enough_simple_configs_are_legal() -> None:
    """Or the test above would test nothing."""
    legal = []

    @settings(max_examples=200, deadline=None, derandomize=True)
    @given(simple_configs())
    def count(text: str) -> None:
        with suppress(ConfigError):
            legal.append(json.loads(format_retrain_json(resolved(text, "my.cfg"))))

    count()
    layers = [layer for config in legal for layer in config.values() if isinstance(layer, dict)]
    assert len(legal) > 50
    assert {kind["prune_type"] for layer in layers if (kind := layer.get("regular_prune_config"))} == {
        "filter_prune",
        "selective_prune",
    }
    assert {layer["retrain_enable"] for layer in layers} == {True, False}


@st.composite
def json_layers(draw: st.DrawFn) -> dict[str, Any]:
    """A layer with every key that it can have."""
    layer: dict[str, Any] = {"retrain_enable": draw(BOOLS)}
    if layer["retrain_enable"]:
        clip = {"clip_max": draw(CLIPS), "clip_min": -draw(CLIPS)} if draw(BOOLS) else {}
        fixed = {"fixed_min": draw(BOOLS)} if draw(BOOLS) else {}
        layer["retrain_data_config"] = {"algo": "ulq_quantize", **clip, **fixed, "dst_type": "INT8"}
        algorithm = draw(st.sampled_from(["arq_retrain", "ulq_retrain"]))
        layer["retrain_weight_config"] = {"algo": algorithm, "channel_wise": False, "dst_type": "INT8"}
    kind = draw(st.sampled_from(["", "skipped", "filters", "selective"]))
    if kind:
        layer["regular_prune_enable"] = kind != "skipped"
    if kind == "filters":
        layer["regular_prune_config"] = {**FILTERS, "prune_ratio": draw(RATIOS), "ascend_optimized": draw(BOOLS)}
    elif kind == "selective":
        layer["regular_prune_config"] = {**SELECTIVE, "n_out_of_m_type": "M4N2", "update_freq": draw(st.integers(0, 9))}
    return layer


@settings(max_examples=200, deadline=None)
@given(st.dictionaries(st.sampled_from(["conv1", "conv2", "fc"]), json_layers()))
def test_json_is_written_as_it_was_read(layers: dict[str, Any]) -> None:
    absent = {name: {"retrain_enable": False} for name in FACTS.layers}
    given_config = {"version": 1, "batch_num": 2, **dict(sorted({**absent, **layers}.items()))}
    text = json.dumps(given_config, indent=4, separators=(",", ":"))
    assert format_retrain_json(resolved(text)) == text
    short = json.dumps({"version": 1, "batch_num": 2, **layers})
    assert format_retrain_json(resolved(short)) == text
