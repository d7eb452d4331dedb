"""Which fields each flow takes, by the table in AMCT's rules, and what only quantizing adds."""

from __future__ import annotations

import json

import pytest

from amct_onnx.config.retrain import (
    DataQuant,
    Flow,
    RetrainFacts,
    TrainableLayer,
    WeightQuant,
    parse_retrain_request,
    resolve_retrain,
)
from amct_onnx.errors import ConfigError

FACTS = RetrainFacts(
    layers={
        "conv": TrainableLayer(op_type="Conv", kernel_rank=2, per_channel=True),
        "fc": TrainableLayer(op_type="Gemm"),
    },
    layer_types=("Conv", "Gemm"),
    prunable_types=("Conv", "Gemm"),
    sparse_types=("Conv", "Gemm"),
)
FILTERS = "prune_config { filter_pruner { balanced_l2_norm_filter_prune { prune_ratio: 0.5 } } }"
SELECTIVE = "prune_config { n_out_of_m_pruner { l1_selective_prune {} } }"
DATA = "retrain_data_quant_config { ulq_quantize {} }"
WEIGHT = "retrain_weight_quant_config { arq_retrain {} }"

# Field, a text that holds it on line 2, and the flows that take it.
FIELDS = [
    ("prune_config", FILTERS, {Flow.PRUNE, Flow.COMPRESSED}),
    ("prune_config", SELECTIVE, {Flow.PRUNE, Flow.COMPRESSED}),
    ("prune_config", f'override_layer_configs {{ layer_name: "fc"\n{SELECTIVE} }}', {Flow.PRUNE, Flow.COMPRESSED}),
    ("prune_config", f'override_layer_types {{ layer_type: "Conv"\n{FILTERS} }}', {Flow.PRUNE, Flow.COMPRESSED}),
    ("regular_prune_skip_layers", 'regular_prune_skip_layers: "fc"', {Flow.PRUNE, Flow.COMPRESSED}),
    ("regular_prune_skip_types", 'regular_prune_skip_types: "Gemm"', {Flow.PRUNE, Flow.COMPRESSED}),
    ("retrain_data_quant_config", DATA, {Flow.QUANT, Flow.COMPRESSED}),
    ("retrain_weight_quant_config", WEIGHT, {Flow.QUANT, Flow.COMPRESSED}),
    (
        "retrain_data_quant_config",
        f'override_layer_configs {{ layer_name: "fc"\n{DATA} }}',
        {Flow.QUANT, Flow.COMPRESSED},
    ),
    (
        "retrain_weight_quant_config",
        f'override_layer_types {{ layer_type: "Conv"\n{WEIGHT} }}',
        {Flow.QUANT, Flow.COMPRESSED},
    ),
    ("quant_skip_layers", 'quant_skip_layers: "fc"', {Flow.QUANT, Flow.COMPRESSED}),
    ("quant_skip_types", 'quant_skip_types: "Gemm"', {Flow.QUANT, Flow.COMPRESSED}),
    ("skip_layers", 'skip_layers: "fc"', set(Flow)),
    ("skip_layer_types", 'skip_layer_types: "Gemm"', set(Flow)),
    ("batch_num", "batch_num: 2", set(Flow)),
    ("fakequant_precision_mode", "fakequant_precision_mode: FORCE_FP16_QUANT", set(Flow)),
]


@pytest.mark.parametrize("flow", Flow)
@pytest.mark.parametrize(("field", "text", "takers"), FIELDS)
def test_each_field_in_each_flow(field: str, text: str, takers: set[Flow], flow: Flow) -> None:
    request = parse_retrain_request("\n" * ("\n" not in text) + text, source="my.cfg")
    if flow in takers:
        resolve_retrain(request, FACTS, flow)
        return
    words = rf"^my\.cfg, line 2.*: {field} is not taken, since .* here; delete it, or let `amct_onnx compress` "
    with pytest.raises(ConfigError, match=words):
        resolve_retrain(request, FACTS, flow)


def test_all_refused_fields_are_told_in_one_message() -> None:
    text = f'{WEIGHT}\nquant_skip_layers: "fc"\n{DATA}\n{FILTERS}'
    with pytest.raises(ConfigError) as caught:
        resolve_retrain(parse_retrain_request(text, source="my.cfg"), FACTS, Flow.PRUNE)
    assert str(caught.value) == (
        "my.cfg, line 1: retrain_weight_quant_config, quant_skip_layers (line 2), retrain_data_quant_config (line 3) "
        "are not taken, since nothing is quantized here; delete them, or let `amct_onnx compress` "
        "(create_compressed_retrain_model) do everything"
    )


@pytest.mark.parametrize(
    ("layer", "flow", "words"),
    [
        ({"retrain_enable": True}, Flow.PRUNE, 'line 2, "fc": retrain_data_config, retrain_weight_config'),
        (
            {"regular_prune_enable": True, "regular_prune_config": {"prune_type": "selective_prune"}},
            Flow.QUANT,
            'line 4, "fc": regular_prune_config is not taken',
        ),
    ],
)
def test_the_same_in_json(layer: dict[str, object], flow: Flow, words: str) -> None:
    request = parse_retrain_request(json.dumps({"fc": layer}, indent=1), source="my.json")
    with pytest.raises(ConfigError, match=words):
        resolve_retrain(request, FACTS, flow)
    resolve_retrain(request, FACTS)


@pytest.mark.parametrize("flow", Flow)
def test_a_layer_of_json_that_is_left_out_needs_no_flow(flow: Flow) -> None:
    text = '{"fc": {"retrain_enable": false, "regular_prune_enable": false}}'
    assert resolve_retrain(parse_retrain_request(text), FACTS, flow).quantized() == ()


@pytest.mark.parametrize("first", [FILTERS, SELECTIVE])
@pytest.mark.parametrize("flow", [Flow.PRUNE, Flow.COMPRESSED])
def test_a_block_prunes_in_one_way(first: str, flow: Flow) -> None:
    """Protobuf allows one member of a oneof; other blocks may choose otherwise."""
    kinds = {"filter_pruner": FILTERS, "n_out_of_m_pruner": SELECTIVE}
    inner = {name: text.removeprefix("prune_config {").removesuffix("}") for name, text in kinds.items()}
    last, other = sorted(kinds, key=lambda name: kinds[name] == first)
    text = f"prune_config {{\n{inner[other]}\n{inner[last]} }}"
    words = f"line 3: prune_config holds {last} and, on line 2, {other}, but a block prunes in one way; "
    words += "delete one, or give it to some layers in an override"
    with pytest.raises(ConfigError, match=words):
        resolve_retrain(parse_retrain_request(text), FACTS, flow)
    both = resolve_retrain(
        parse_retrain_request(f'{FILTERS} override_layer_configs {{ layer_name: "fc" {SELECTIVE} }}'), FACTS, flow
    )
    assert (set(both.pruned()), set(both.thinned())) == ({"conv"}, {"fc"})


class TestOnlyQuantizing:
    """Every layer is quantized, by defaults where nothing else is said."""

    def test_nothing_said(self) -> None:
        layers = resolve_retrain(parse_retrain_request(""), FACTS, Flow.QUANT).layers
        assert {name: (layer.data, layer.weight) for name, layer in layers.items()} == {
            "conv": (DataQuant(), WeightQuant(algorithm="arq_retrain", channel_wise=True)),
            "fc": (DataQuant(), WeightQuant(algorithm="arq_retrain", channel_wise=False)),
        }

    def test_an_override_changes_what_it_holds(self) -> None:
        text = 'override_layer_types { layer_type: "Conv" retrain_weight_quant_config { ulq_retrain {} } }'
        layers = resolve_retrain(parse_retrain_request(text), FACTS, Flow.QUANT).layers
        assert layers["conv"].weight == WeightQuant(algorithm="ulq_retrain", channel_wise=True)
        assert layers["fc"].weight == WeightQuant(algorithm="arq_retrain", channel_wise=False)

    @pytest.mark.parametrize("field", ["skip_layers", "quant_skip_layers"])
    def test_both_lists_leave_layers_out(self, field: str) -> None:
        config = resolve_retrain(parse_retrain_request(f'{field}: "fc"'), FACTS, Flow.QUANT)
        assert config.quantized() == ("conv",)
        assert not config.layers["fc"].skipped  # of pruning, which is no concern here

    def test_json_lists_the_layers(self) -> None:
        config = resolve_retrain(parse_retrain_request('{"fc": {"retrain_enable": true}}'), FACTS, Flow.QUANT)
        assert config.quantized() == ("fc",)

    def test_nothing_left(self) -> None:
        config = resolve_retrain(parse_retrain_request('skip_layer_types: ["Conv", "Gemm"]'), FACTS, Flow.QUANT)
        with pytest.raises(ConfigError, match=r"leaves no layer to quantize \(skip_layer_types, line 1\); skip fewer"):
            config.check_quantizes()


def test_both_together_quantize_what_is_asked_for() -> None:
    assert resolve_retrain(parse_retrain_request(FILTERS), FACTS, Flow.COMPRESSED).quantized() == ()
