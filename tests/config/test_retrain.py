"""The retrain config: protobuf's parser is the oracle for what is legal, published examples for what it means."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any, ClassVar

import pytest
from google.protobuf import text_format

from amct_onnx.config.retrain import (
    DataQuant,
    FilterPruning,
    RetrainConfig,
    RetrainFacts,
    SelectivePruning,
    TrainableLayer,
    WeightQuant,
    is_retrain_config,
    load_retrain_request,
    parse_retrain_request,
    resolve_retrain,
)
from amct_onnx.errors import ConfigError
from amct_onnx.proto.retrain_config_onnx import AMCTRetrainConfig
from tests.config.retrain_examples import EXAMPLES, with_names

CONV = {"op_type": "Conv", "kernel_rank": 2, "per_channel": True}
FACTS = RetrainFacts(
    layers={
        "conv1": TrainableLayer(**CONV),
        "conv2": TrainableLayer(**CONV),
        "conv3": TrainableLayer(**CONV),
        "line": TrainableLayer(**{**CONV, "kernel_rank": 1}),
        "deconv": TrainableLayer(op_type="ConvTranspose", kernel_rank=2, per_channel=True),
        "pool": TrainableLayer(op_type="AveragePool", kernel_rank=2, stays="it makes no channels of its own"),
        "fc": TrainableLayer(op_type="Gemm"),
        "product": TrainableLayer(op_type="MatMul"),
        "last": TrainableLayer(op_type="Gemm", stays="it is the model's output 'y'"),
    },
    nodes={"conv1": "Conv", "relu": "Relu"},
    layer_types=("Conv", "ConvTranspose", "Gemm", "MatMul", "AveragePool", "LSTM"),
    prunable_types=("Conv", "ConvTranspose", "Gemm", "MatMul"),
    sparse_types=("Conv", "ConvTranspose", "Gemm", "MatMul"),
)


def filters(ratio: float, *, aligned: bool | None = None) -> str:
    flag = "" if aligned is None else f"ascend_optimized: {str(aligned).lower()}"
    return f"prune_config {{ filter_pruner {{ balanced_l2_norm_filter_prune {{ prune_ratio: {ratio} {flag} }} }} }}"


def of_layer(name: str, inner: str) -> str:
    return f'override_layer_configs {{ layer_name: "{name}" {inner} }}'


def of_type(name: str, inner: str) -> str:
    return f'override_layer_types {{ layer_type: "{name}" {inner} }}'


HALF = FilterPruning(ratio=0.5)
SPARSE = "prune_config { n_out_of_m_pruner { l1_selective_prune {} } }"
ARQ = "retrain_weight_quant_config { arq_retrain {} }"
ULQ = "retrain_data_quant_config { ulq_quantize {} }"


def resolved(text: str) -> RetrainConfig:
    return resolve_retrain(parse_retrain_request(text), FACTS)


class TestPrecedence:
    """Layer before type before everything, block by block."""

    TEXT = "\n".join(
        [
            filters(0.3, aligned=False),
            of_type("Conv", filters(0.5)),
            of_layer("conv2", filters(0.7)),
            'regular_prune_skip_layers: "conv3"',
            'regular_prune_skip_types: "MatMul"',
            'skip_layers: "deconv"',
        ]
    )

    def test_ratios(self) -> None:
        assert resolved(self.TEXT).pruned() == {
            "conv1": HALF,
            "conv2": FilterPruning(ratio=0.7),
            "line": HALF,
            "fc": FilterPruning(ratio=0.3, ascend_optimized=False),
        }

    def test_every_choice_names_its_line(self) -> None:
        layers = resolved(self.TEXT).layers
        assert [layers[name].origins["prune"] for name in ("fc", "conv1", "conv2")] == [
            "prune_config, line 1",
            'override_layer_types "Conv", line 2',
            'override_layer_configs "conv2", line 3',
        ]

    def test_every_layer_that_stays_says_why(self) -> None:
        layers = resolved(self.TEXT).layers
        assert {name: layer.why_whole for name, layer in layers.items() if layer.why_whole} == {
            "conv3": "regular_prune_skip_layers, line 4",
            "product": "regular_prune_skip_types, line 5",
            "deconv": "skip_layers, line 6",
            "pool": "a AveragePool is not pruned",
            "last": "it is the model's output 'y'",
        }

    def test_an_override_is_enough(self) -> None:
        config = resolved(of_layer("conv1", filters(0.5)))
        assert config.pruned() == {"conv1": HALF}
        assert config.layers["fc"].why_whole == "no block prunes it"

    def test_an_override_may_choose_the_other_kind(self) -> None:
        config = resolved(filters(0.5) + of_type("Conv", SPARSE))
        assert set(config.pruned()) == {"deconv", "fc", "product"}
        assert config.sparse() == dict.fromkeys(("conv1", "conv2", "conv3", "line"), SelectivePruning())

    def test_data_and_weights_are_replaced_each_for_itself(self) -> None:
        clip = (
            "retrain_data_quant_config { ulq_quantize { clip_max_min { clip_max: 6 clip_min: -5 } fixed_min: true } }"
        )
        other = "retrain_weight_quant_config { ulq_retrain { channel_wise: false } }"
        layers = resolved(f"{clip} {ARQ}" + of_layer("conv1", other)).layers
        data = DataQuant(clip_max=6, clip_min=-5, fixed_min=True)
        assert (layers["conv1"].data, layers["conv1"].weight) == (
            data,
            WeightQuant(algorithm="ulq_retrain", channel_wise=False),
        )
        assert (layers["conv2"].data, layers["conv2"].weight) == (
            data,
            WeightQuant(algorithm="arq_retrain", channel_wise=True),
        )
        assert layers["fc"].weight == WeightQuant(algorithm="arq_retrain", channel_wise=False)

    def test_lists_for_one_purpose_leave_the_other_alone(self) -> None:
        config = resolved(
            f'{ARQ} {filters(0.5)} quant_skip_layers: "conv1" quant_skip_types: "Gemm" '
            'regular_prune_skip_layers: "conv2"'
        )
        assert "conv1" in config.pruned()
        assert "conv2" not in config.pruned()
        assert set(config.quantized()) == {"conv2", "conv3", "line", "deconv", "pool", "product"}


class TestSharedChannels:
    FACTS = replace(
        FACTS,
        layers={
            "one": TrainableLayer(**CONV, shares=("two", "three")),
            "two": TrainableLayer(**CONV, shares=("one", "three")),
            "three": TrainableLayer(**CONV, shares=("one", "two")),
            "alone": TrainableLayer(**CONV),
        },
    )

    def resolved(self, text: str) -> RetrainConfig:
        return resolve_retrain(parse_retrain_request(text), self.FACTS)

    def test_the_smallest_ratio_counts_and_any_alignment(self) -> None:
        text = filters(0.5, aligned=False) + "\n" + of_layer("two", filters(0.25)) + of_layer("alone", filters(0.75))
        config = self.resolved(text)
        shared = FilterPruning(ratio=0.25, ascend_optimized=True)
        alone = FilterPruning(ratio=0.75, ascend_optimized=True)
        assert config.pruned() == {**dict.fromkeys(("one", "two", "three"), shared), "alone": alone}
        assert config.layers["one"].origins["prune"] == "override_layer_configs \"two\", line 2 (of 'two')"
        assert config.layers["two"].origins["prune"] == 'override_layer_configs "two", line 2'

    @pytest.mark.parametrize(
        ("more", "why"),
        [
            ('skip_layers: "two"', "skip_layers, line 2"),
            (of_layer("two", SPARSE), "its weights are thinned out instead"),
        ],
    )
    def test_one_that_stays_keeps_all(self, more: str, why: str) -> None:
        config = self.resolved(filters(0.5) + "\n" + more)
        assert set(config.pruned()) == {"alone"}
        assert config.layers["three"].why_whole == f"it shares channels with 'two', which stays: {why}"
        assert "prune" not in config.layers["three"].origins

    def test_one_of_which_nothing_is_said_keeps_all(self) -> None:
        config = self.resolved(of_layer("one", filters(0.5)) + of_layer("alone", filters(0.5)))
        assert config.layers["one"].why_whole == "it shares channels with 'two', which stays: no block prunes it"


@pytest.mark.parametrize(
    ("name", "layers"),
    [
        ("Conv2d", {"conv1", "conv2", "conv3"}),
        ("Conv1d", {"line"}),
        ("Conv", {"conv1", "conv2", "conv3", "line"}),
        ("Linear", {"fc", "product"}),
        ("ConvTranspose2d", {"deconv"}),
        ("Gemm", {"fc"}),
    ],
)
def test_types_have_their_onnx_and_their_pytorch_names(name: str, layers: set[str]) -> None:
    assert set(resolved(of_type(name, filters(0.5))).pruned()) == layers


def test_numbers_are_the_decimal_fractions_that_were_written() -> None:
    assert resolved(filters(0.3)).pruned()["fc"].ratio == 0.3


def test_globals() -> None:
    config = resolved(f"batch_num: 4 fakequant_precision_mode: FORCE_FP16_QUANT {filters(0.5)}")
    assert (config.batch_num, config.force_fp16_quant) == (4, True)
    assert resolved(filters(0.5)).batch_num == 1


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (ARQ, "holds no prune_config, neither for all layers nor in an override"),
        (SPARSE, "asks for 4:2 sparsity alone"),
        (
            filters(0.5) + 'skip_layer_types: ["Conv", "ConvTranspose", "Linear"]',
            r"no layer to prune \(skip_layer_types",
        ),
        (of_layer("last", filters(0.5)), "no layer to prune .*it is the model's output 'y'"),
    ],
)
def test_a_config_that_prunes_nothing_is_told_apart(text: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        resolved(text).pruned()


def test_pruning_what_must_stay_is_a_warning() -> None:
    (warning,) = resolved(filters(0.5) + of_layer("last", filters(0.5))).warnings
    assert (warning.entry, warning.line) == ("last", 1)
    assert "none of its channels can go: it is the model's output" in warning.message


FAULTS = [
    # Names.
    ('skip_layers: "conv"', "conv", 'did you mean "conv[123]"'),
    ('quant_skip_layers: "relu"', "relu", "a Relu is no layer; delete"),
    ('skip_layers: ["fc", "fc"]', "fc", "skip_layers names it twice .*delete one"),
    ('regular_prune_skip_types: ["Conv", "Conv"]', "Conv", "names it twice .*delete one"),
    ('regular_prune_skip_types: "AveragePool"', "AveragePool", "type that is not pruned; choose from"),
    ('quant_skip_types: "Linar"', "Linar", "did you mean Linear"),
    ('skip_layer_types: "Relu"', "Relu", "type that is not pruned or quantized"),
    (of_layer("fc", filters(0.5)) * 2, "fc", "override_layer_configs names it twice .*delete one"),
    (of_type("Gemm", filters(0.5)) * 2, "Gemm", "override_layer_types names it twice .*delete one"),
    (of_type("Gemm", ARQ) + of_type("Linear", ARQ), "Linear", 'names layers of "Gemm" again .*delete one'),
    (of_layer("pool", filters(0.5)), "pool", "a AveragePool is not pruned; delete"),
    (of_type("AvgPool2d", filters(0.5)), "AvgPool2d", "a AveragePool is not pruned; delete"),
    # Blocks that count for nobody.
    (of_type("LSTM", ARQ), "LSTM", "the model has no layer; delete"),
    (of_layer("fc", filters(0.5)) + 'skip_layers: "fc"', "fc", "what skip_layers, line 2, leaves out.*delete one"),
    (of_layer("fc", filters(0.5)) + 'skip_layer_types: "Linear"', "fc", "skip_layer_types, line 2, leaves out"),
    (
        of_type("Conv1d", filters(0.5)) + 'regular_prune_skip_layers: "line"',
        "Conv1d",
        "regular_prune_skip_layers, line 2",
    ),
    (of_type("Gemm", ARQ) + 'quant_skip_types: "Gemm"', "Gemm", "its quantization for what quant_skip_types, line 2"),
    (of_type("Conv1d", filters(0.5)) + of_layer("line", filters(0.4)), "Conv1d", "block of its own; delete"),
    (of_layer("fc", ""), "", "override_layer_configs gives nothing for it; add prune_config"),
    # Bounds.
    *((filters(ratio), "", "prune_ratio is .*above 0 and below 1; correct") for ratio in (0, 1, -0.5, 1.5)),
    (filters(0.5).replace("0.5", "nan"), "", "prune_ratio is nan"),
    ("batch_num: 0", "", "batch_num is 0.*at least 1"),
    (ULQ.replace("{}", "{ dst_type: INT4 }"), "", "dst_type is INT4.*activations.*INT8 or INT16; correct"),
    (ARQ.replace("{}", "{ dst_type: INT16 }"), "", "dst_type is INT16.*weights.*INT4 or INT8; correct"),
    (ULQ.replace("{}", "{ clip_max_min { clip_max: 0 clip_min: -1 } }"), "", "clip_max is 0.*above 0"),
    (ULQ.replace("{}", "{ clip_max_min { clip_max: 1 clip_min: 1 } }"), "", "clip_min is 1.*below 0"),
    (
        of_layer("fc", ARQ.replace("{}", "{ channel_wise: true }")),
        "fc",
        "channel_wise: true is not possible for a Gemm",
    ),
    (of_type("Linear", ARQ.replace("{}", "{ channel_wise: true }")), "Linear", "not possible for a Gemm; write false"),
    # What is missing.
    ("prune_config {}", "", "prune_config names no algorithm; write filter_pruner"),
    ("prune_config { filter_pruner {} }", "", "prune_config names no algorithm; write filter_pruner"),
    ("prune_config { n_out_of_m_pruner {} }", "", "n_out_of_m_pruner names no algorithm; write l1_selective_prune"),
    (filters(0.5).replace("prune_ratio: 0.5", ""), "", "prune_ratio is missing"),
    ("retrain_data_quant_config {}", "", "retrain_data_quant_config names no algorithm"),
    ("retrain_weight_quant_config {}", "", "retrain_weight_quant_config names no algorithm"),
    (
        "override_layer_types { prune_config { n_out_of_m_pruner { l1_selective_prune {} } } }",
        "",
        "layer_type is missing",
    ),
    (SPARSE.replace("{}", "{ n_out_of_m_type: M8N4 }"), "", "n_out_of_m_type takes one of M4N2"),
    # What is not of this schema.
    ("prune_config: 3", "", "prune_config takes a block in braces, not 3"),
    ("common_config {}", "", "unknown field common_config"),
]


@pytest.mark.parametrize(("text", "entry", "words"), FAULTS)
def test_every_fault_names_line_entry_rule_and_remedy(text: str, entry: str, words: str) -> None:
    named = f', "{entry}"' if entry else ""
    with pytest.raises(ConfigError, match=rf"^my\.cfg, line 2{named}: .*{words}"):
        resolve_retrain(parse_retrain_request("\n" + text, source="my.cfg"), FACTS)


def test_all_faults_are_told_together_in_the_order_of_lines() -> None:
    text = "\n".join([filters(2), 'skip_layers: "nobody"', of_layer("conv4", ARQ), "batch_num: 0"])
    with pytest.raises(ConfigError) as caught:
        resolved(text)
    assert [line.split(":")[0].strip() for line in str(caught.value).splitlines()] == [
        "<text> has 4 faults",
        "line 1",
        'line 2, "nobody"',
        'line 3, "conv4"',
        "line 4",
    ]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("prune_config {", r"line 1, column 1: .*never closed"),
        ('{"version":1', r"line 1, column 13: expected "),
        ('{"conv1":{"quant_enable":true}}', "is a calibration config .*`amct_onnx quantize` takes it as --config"),
    ],
)
def test_what_is_no_config(text: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        parse_retrain_request(text)


def test_a_file_that_is_not_there(tmp_path) -> None:
    with pytest.raises(ConfigError, match=r"no\.cfg cannot be read: No such file"):
        load_retrain_request(tmp_path / "no.cfg")


@pytest.mark.parametrize(
    ("text", "is_one"),
    [
        (filters(0.5), True),
        (of_layer("a", filters(0.5)), True),
        (ARQ, True),
        ('quant_skip_types: "Conv"', True),
        ("common_config { ifmr_quantize {} }", False),
        ('skip_layers: "a" override_layer_configs { layer_name: "b" calibration_config {} }', False),
        ('{"version":1}', False),
        ("prune_config {", True),
        ("common_config {", False),
    ],
)
def test_retrain_configs_are_known_by_their_fields(text: str, *, is_one: bool) -> None:
    assert is_retrain_config(text) is is_one


class TestPublishedExamples:
    """Quoted names are broken over lines as printed; protobuf refuses that, so its oracle gets them joined."""

    @pytest.mark.parametrize("text", EXAMPLES.values(), ids=EXAMPLES)
    def test_protobuf_agrees_that_they_are_legal(self, text: str) -> None:
        joined, broken = re.subn(r'"\n(\w+)\n"', r'"\1"', text)
        message: Any = text_format.Parse(joined, AMCTRetrainConfig())
        request = parse_retrain_request(text)
        assert [named.name for named, _ in request.layers] == [e.layer_name for e in message.override_layer_configs]
        assert [named.name for named, _ in request.types] == [e.layer_type for e in message.override_layer_types]
        assert [finding.message.split('"')[2] for finding in request.findings] == [
            " is broken over 3 lines; it was joined, write it on one"
        ] * broken

    def test_the_examples_have_both_spellings(self) -> None:
        """Both spellings of a block, with and without a colon, and both of true."""
        assert "prune_config{" in EXAMPLES["prune.cfg"]
        assert "prune_config : {" in EXAMPLES["prune.cfg"]
        assert "True" in EXAMPLES["prune.cfg"]
        assert "true" in EXAMPLES["quant.cfg"]

    def test_quant(self) -> None:
        config = resolved(with_names(EXAMPLES["quant.cfg"].replace("conv_1", "conv1"), "ConvTranspose", "conv2"))
        data = DataQuant(clip_max=6.0, clip_min=-6.0)
        assert {layer.data for name, layer in config.layers.items() if name != "conv1"} == {data}
        assert (config.layers["conv1"].data, config.layers["conv1"].why_float) == (None, "skip_layers, line 17")
        wise = {name: layer.weight.channel_wise for name, layer in config.layers.items() if layer.weight}
        assert [name for name, is_wise in wise.items() if is_wise] == ["conv3", "line"]
        with pytest.raises(ConfigError, match="holds no prune_config"):
            config.pruned()

    def test_prune(self) -> None:
        config = resolved(with_names(EXAMPLES["prune.cfg"], "conv1", "fc", "conv2"))
        assert config.pruned() == {
            "conv2": HALF,
            **dict.fromkeys(("conv3", "line", "deconv", "product"), FilterPruning(ratio=0.3)),
        }
        assert (config.layers["conv1"].why_whole, config.layers["fc"].why_whole) == (
            "regular_prune_skip_layers, line 11",
            "regular_prune_skip_layers, line 14",
        )
        assert config.quantized() == ()

    def test_selective_prune(self) -> None:
        config = resolved(with_names(EXAMPLES["selective_prune.cfg"], "conv1", "fc", "conv2"))
        assert config.sparse() == {
            "conv2": SelectivePruning(update_freq=1),
            **dict.fromkeys(("conv3", "line", "deconv", "product", "last"), SelectivePruning(update_freq=0)),
        }
        with pytest.raises(ConfigError, match="4:2 sparsity alone"):
            config.pruned()

    @pytest.mark.parametrize("name", ["compressed1.cfg", "compressed2.cfg"])
    def test_compressed(self, name: str) -> None:
        config = resolved(with_names(EXAMPLES[name], "MatMul", "conv2", "Gemm", "ConvTranspose"))
        kinds: dict[str, tuple[Any, Any]] = {
            "compressed1.cfg": (FilterPruning(ratio=0.3), HALF),
            "compressed2.cfg": (SelectivePruning(update_freq=0), SelectivePruning(update_freq=1)),
        }
        of_all, of_one = kinds[name]
        chosen = {name: layer.pruning or layer.sparsity for name, layer in config.layers.items()}
        assert chosen["deconv"] == of_one
        assert [chosen[name] for name in ("conv1", "conv2", "conv3", "line", "fc")] == [of_all] * 5
        assert (chosen["product"], config.layers["product"].why_whole) == (None, "skip_layer_types, line 10")
        assert config.quantized() == ("conv1", "conv3", "line", "deconv", "pool")
        assert config.layers["deconv"].data == DataQuant(clip_max=6.0, clip_min=-6.0)
        # The block gives weights alone, so data is quantized by what AMCT takes where nothing is said.
        assert (config.layers["conv1"].data, config.layers["conv1"].origins["data"]) == (DataQuant(), "default")
        assert [config.layers[name].weight for name in ("conv1", "deconv")] == [
            WeightQuant(algorithm="arq_retrain", channel_wise=True),
            WeightQuant(algorithm="arq_retrain", channel_wise=False),
        ]

    UNKNOWN = "names it, but the model has no such node"
    NO_TYPE = "names a type that is not pruned or quantized; choose from Conv, ConvTranspose, Gemm"
    OF_PRUNING: ClassVar = [
        (11, "Opname", f"regular_prune_skip_layers {UNKNOWN}; `amct_onnx inspect` shows the names"),
        (14, "Opname", "regular_prune_skip_layers names it twice (first on line 11); delete one of them"),
        (18, "Opname", f"override_layer_configs {UNKNOWN}"),
        (18, "Opname", "override_layer_configs gives prune_config for what regular_prune_skip_layers, line 11, leaves"),
    ]
    OF_BOTH: ClassVar = [
        (10, "Optype", f"skip_layer_types {NO_TYPE}"),
        (13, "Opname", f"quant_skip_layers {UNKNOWN}"),
        (16, "Optype", f"quant_skip_types {NO_TYPE}"),
        (25, "Optype", f"override_layer_types {NO_TYPE}"),
        (25, "Optype", "override_layer_types gives prune_config for what skip_layer_types, line 10, leaves out"),
        (25, "Optype", "override_layer_types gives its quantization for what skip_layer_types, line 10, leaves out"),
    ]
    VERBATIM: ClassVar = {
        "quant.cfg": [
            (17, "conv_1", f'skip_layers {UNKNOWN}; did you mean "conv1"?'),
            (20, "Optype", f"override_layer_types {NO_TYPE}"),
            (31, "Opname", f"override_layer_configs {UNKNOWN}"),
        ],
        "prune.cfg": OF_PRUNING,
        "selective_prune.cfg": OF_PRUNING,
        "compressed1.cfg": OF_BOTH,
        "compressed2.cfg": OF_BOTH,
    }

    @pytest.mark.parametrize("name", EXAMPLES)
    def test_verbatim_every_placeholder_is_told_and_nothing_else(self, name: str) -> None:
        """Unknown layers and types, repeated entries, overrides that count for nobody: each with its line."""
        with pytest.raises(ConfigError) as caught:
            resolve_retrain(parse_retrain_request(EXAMPLES[name], source=name), FACTS)
        first, *told = str(caught.value).splitlines()
        assert first == f"{name} has {len(self.VERBATIM[name])} faults:"
        for (line, entry, words), text in zip(self.VERBATIM[name], told, strict=True):
            assert text.startswith(f'  line {line}, "{entry}": {words}')
