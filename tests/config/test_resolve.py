"""What a config means for each layer: precedence, defaults, bounds, and every error with its words."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from amct_onnx.config import (
    ActivationAlgorithm,
    ActivationOptions,
    ModelFacts,
    QuantConfig,
    TensorOptions,
    WeightAlgorithm,
    WeightOptions,
    arguments_request,
    parse_request,
    resolve,
)
from amct_onnx.errors import ConfigError, NothingToCompressError
from tests.config.model_facts import CONV, FACTS, only


def resolved(text: str, facts: ModelFacts = FACTS) -> QuantConfig:
    return resolve(parse_request(text, source="my.cfg"), facts)


def fault(text: str, facts: ModelFacts = FACTS) -> str:
    with pytest.raises(ConfigError) as caught:
        resolved(text, facts)
    return str(caught.value)


def warnings(config: QuantConfig) -> list[str]:
    return [str(finding) for finding in config.warnings]


def common(inner: str) -> str:
    return f"common_config {{ {inner} }}"


def of_type(name: str, inner: str) -> str:
    return f'override_layer_types {{ layer_type: "{name}" calibration_config {{ {inner} }} }}'


def of_layer(name: str, inner: str) -> str:
    return f'override_layer_configs {{ layer_name: "{name}" calibration_config {{ {inner} }} }}'


class TestDefaults:
    def test_an_empty_config_is_amcts_default(self) -> None:
        config = resolved("")
        assert (config.batch_num, config.activation_offset, config.do_fusion) == (1, True, True)
        assert (config.joint_quant, config.force_fp16_quant, config.skip_fusion_layers) == (False, False, ())
        assert all(layer.enabled for layer in config.layers.values())
        assert {layer.options.activation.algorithm for layer in config.layers.values()} == {ActivationAlgorithm.IFMR}
        assert {layer.options.weight.algorithm for layer in config.layers.values()} == {WeightAlgorithm.ARQ}
        assert not config.warnings

    @pytest.mark.parametrize("name", FACTS.layers)
    def test_channel_wise(self, name: str) -> None:
        wanted = FACTS.layers[name].op_type in ("Conv", "ConvTranspose")
        assert resolved("").layers[name].options.weight.per_channel is wanted

    def test_origins(self) -> None:
        origins = resolved("").layers["conv"].origins
        assert set(origins.values()) == {"default"}

    def test_layers_stay_in_graph_order(self) -> None:
        assert list(resolved("").layers) == list(FACTS.layers)

    def test_parameters(self) -> None:
        assert resolved("").layers["conv"].options.activation == ActivationOptions(algorithm=ActivationAlgorithm.IFMR)


class TestPrecedence:
    TEXT = "\n".join(
        [
            common("hfmg_quantize { num_of_bins: 1024 }"),
            of_type("Conv", "hfmg_quantize { num_of_bins: 2048 }"),
            of_layer("conv", "hfmg_quantize { num_of_bins: 8192 }"),
        ]
    )

    @pytest.mark.parametrize(("name", "bins"), [("conv", 8192), ("conv_odd", 2048), ("fc", 1024), ("pool", 1024)])
    def test_layer_before_type_before_common(self, name: str, bins: int) -> None:
        assert resolved(self.TEXT).layers[name].options.activation.num_of_bins == bins

    @pytest.mark.parametrize(
        ("name", "place"),
        [
            ("conv", 'override_layer_configs "conv", line 3'),
            ("conv_odd", 'override_layer_types "Conv", line 2'),
            ("fc", "common_config, line 1"),
        ],
    )
    def test_origin(self, name: str, place: str) -> None:
        assert resolved(self.TEXT).layers[name].origins["activation.num_of_bins"] == place

    def test_blocks_are_replaced_not_merged(self) -> None:
        text = common("hfmg_quantize {} arq_quantize { quant_bits: 7 }") + of_layer("conv", "arq_quantize {}")
        options = resolved(text).layers["conv"].options
        assert options.activation.algorithm is ActivationAlgorithm.IFMR
        assert options.weight.bits == 8

    def test_legacy_blocks(self) -> None:
        text = (
            "conv_calibration_config { ifmr_quantize { search_step: 0.02 } }"
            "fc_calibration_config { ifmr_quantize { search_step: 0.03 } }"
        )
        steps = {name: layer.options.activation.search_step for name, layer in resolved(text).layers.items()}
        assert (steps["conv"], steps["deconv"], steps["fc"], steps["matmul"]) == (0.02, 0.02, 0.03, 0.03)
        assert steps["pool"] == 0.01

    @pytest.mark.parametrize("newer", ["common_config {}", of_type("Conv", "")])
    def test_legacy_blocks_beside_newer_ones(self, newer: str) -> None:
        config = resolved("conv_calibration_config { ifmr_quantize { search_step: 0.02 } }\n" + newer)
        assert config.layers["conv"].options.activation.search_step == 0.01
        assert re.search(r"line 1: conv_calibration_config is not used", warnings(config)[0])


class TestAsymmetric:
    @pytest.mark.parametrize(
        ("text", "symmetric", "place"),
        [
            ("", False, "default"),
            ("activation_offset: true", False, "activation_offset, line 1"),
            ("activation_offset: false", True, "activation_offset, line 1"),
            (
                "activation_offset: false\n" + of_layer("conv", "ifmr_quantize { asymmetric: true }"),
                False,
                'override_layer_configs "conv", line 2',
            ),
            (
                common("ifmr_quantize { asymmetric: false }") + of_layer("conv", "ifmr_quantize {}"),
                True,
                "common_config, line 1",
            ),
            (common("ifmr_quantize { asymmetric: false }") + of_layer("conv", ""), True, "common_config, line 1"),
            (common("ifmr_quantize { asymmetric: false }") + of_layer("conv", "hfmg_quantize {}"), False, "default"),
            (
                common("ifmr_quantize { asymmetric: false }") + of_layer("conv", "ifmr_quantize { asymmetric: true }"),
                False,
                'override_layer_configs "conv", line 1',
            ),
        ],
    )
    def test_own_word_then_common_then_activation_offset(self, text: str, symmetric: bool, place: str) -> None:
        layer = resolved(text).layers["conv"]
        assert layer.options.activation.symmetric is symmetric
        assert layer.origins["activation.symmetric"] == place

    def test_a_3d_convolution_is_symmetric_whatever_the_default(self) -> None:
        config = resolved("activation_offset: true")
        assert config.layers["conv_3d"].options.activation.symmetric
        assert not config.warnings


class TestSkip:
    def test_layer(self) -> None:
        layer = resolved('\nskip_layers: "fc"').layers["fc"]
        assert (layer.enabled, layer.reason) == (False, "skip_layers, line 2")

    def test_type(self) -> None:
        config = resolved('skip_layer_types: "Conv"')
        skipped = {name for name, layer in config.layers.items() if not layer.enabled}
        assert skipped == {name for name, layer in FACTS.layers.items() if layer.op_type == "Conv"}

    def test_skip_beats_override(self) -> None:
        layer = resolved('skip_layers: "fc"' + of_layer("fc", "hfmg_quantize {}")).layers["fc"]
        assert not layer.enabled
        assert layer.options.activation.algorithm is ActivationAlgorithm.HFMG

    def test_an_impossible_setting_of_a_skipped_layer_does_not_matter(self) -> None:
        config = resolved('skip_layers: "fc"' + of_layer("fc", "arq_quantize { channel_wise: true }"))
        assert not config.warnings

    def test_naming_a_layer_that_stays_float_anyway_is_a_warning(self) -> None:
        assert re.search("computed.*stays float anyway", warnings(resolved('skip_layers: "conv_computed"'))[0])


# What is asked, a layer that cannot do it, words of the finding, and what it gets where the request is for all.
IMPOSSIBLE = [
    ("ifmr_quantize { dst_type: INT16 }", "matmul", "dst_type: 16 .*MatMul take 8 bits", ("activation", "bits", 8)),
    ("hfmg_quantize { dst_type: INT16 }", "conv_3d", "dst_type: 16 .*3-D Conv take 8 bits", ("activation", "bits", 8)),
    ("hfmg_quantize { dst_type: INT16 }", "pool", "dst_type: 16 .*AveragePool", ("activation", "bits", 8)),
    (
        "ifmr_quantize { asymmetric: true }",
        "conv_3d",
        "asymmetric: true .*symmetrically",
        ("activation", "symmetric", True),
    ),
    ("arq_quantize { quant_bits: 4 }", "conv_odd", "quant_bits: 4 .*even number", ("weight", "bits", 8)),
    ("arq_quantize { quant_bits: 4 }", "conv_depthwise", "quant_bits: 4 .*single group", ("weight", "bits", 8)),
    ("arq_quantize { quant_bits: 6 }", "fc", "quant_bits: 6 .*Gemm take 4 or 8 bits", ("weight", "bits", 8)),
    ("arq_quantize { quant_bits: 7 }", "matmul", "quant_bits: 7 .*MatMul take 4 or 8", ("weight", "bits", 8)),
    ("arq_quantize { quant_bits: 7 }", "deconv", "quant_bits: 7 .*ConvTranspose take", ("weight", "bits", 8)),
    ("arq_quantize { channel_wise: true }", "fc", "channel_wise: true .*one scale", ("weight", "per_channel", False)),
    ("arq_quantize { channel_wise: true }", "matmul", "channel_wise: true", ("weight", "per_channel", False)),
    (
        "ada_quantize {}",
        "conv_1d",
        "ada_quantize.*1-D Conv is not learned",
        ("weight", "algorithm", WeightAlgorithm.ARQ),
    ),
    ("ada_quantize {}", "conv_3d", "ada_quantize.*3-D Conv is not", ("weight", "algorithm", WeightAlgorithm.ARQ)),
]


class TestImpossible:
    @pytest.mark.parametrize(("inner", "name", "words", "instead"), IMPOSSIBLE)
    def test_for_all_layers_it_is_left_out_with_a_warning(
        self, inner: str, name: str, words: str, instead: tuple[str, str, object]
    ) -> None:
        config = resolved("\n" + common(inner), only(name))
        part, setting, value = instead
        assert getattr(getattr(config.layers[name].options, part), setting) == value
        assert re.search(f"line 2: {words}.*; it gets", warnings(config)[0])

    @pytest.mark.parametrize(("inner", "name", "words", "instead"), IMPOSSIBLE)
    def test_for_one_layer_it_is_refused(self, inner: str, name: str, words: str, instead: object) -> None:
        message = fault("\n" + of_layer(name, inner))
        assert re.match(f'my.cfg, line 2: {words}.*; correct override_layer_configs "{name}"$', message)

    @pytest.mark.parametrize(("inner", "name", "words", "instead"), IMPOSSIBLE)
    def test_for_a_type_it_is_refused(self, inner: str, name: str, words: str, instead: object) -> None:
        op_type = FACTS.layers[name].op_type
        assert re.search(words, fault(of_type(op_type, inner), only(name)))

    def test_balancing_a_pool(self) -> None:
        config = resolved(common("dmq_balancer {}"), only("pool", "conv"))
        assert config.layers["pool"].options.migration_strength is None
        assert config.layers["conv"].options.migration_strength == 0.5
        assert re.search('dmq_balancer: 0.5 is not possible for "pool"', warnings(config)[0])
        assert re.search('dmq_balancer: 0.5 is not possible for "pool"', fault(of_layer("pool", "dmq_balancer {}")))

    def test_channel_wise_of_a_pool(self) -> None:
        assert not resolved(common("arq_quantize { channel_wise: true }"), only("pool")).warnings
        assert "channel_wise: true" in fault(of_layer("pool", "arq_quantize { channel_wise: true }"))

    @pytest.mark.parametrize(
        ("inner", "name"),
        [
            ("ifmr_quantize { dst_type: INT16 }", "conv"),
            ("ifmr_quantize { dst_type: INT16 }", "conv_1d"),
            ("ifmr_quantize { dst_type: INT16 }", "fc"),
            ("ifmr_quantize { dst_type: INT16 }", "deconv"),
            ("arq_quantize { quant_bits: 4 }", "conv"),
            ("arq_quantize { quant_bits: 4 }", "fc"),
            ("arq_quantize { quant_bits: 6 }", "conv_depthwise"),
            ("arq_quantize { quant_bits: 7 channel_wise: false }", "conv_odd"),
            ("dmq_balancer { migration_strength: 0.2 }", "matmul"),
        ],
    )
    def test_what_is_possible_passes(self, inner: str, name: str) -> None:
        assert not resolved(of_layer(name, inner)).warnings

    def test_layers_of_one_kind_share_one_warning(self) -> None:
        found = warnings(resolved(common("arq_quantize { channel_wise: true }"), only("conv", "fc", "matmul")))
        assert len(found) == 2
        many = replace(FACTS, layers={str(i): replace(FACTS.layers["fc"], name=str(i)) for i in range(5)})
        assert '"0" and 4 more layers' in warnings(resolved(common("arq_quantize { channel_wise: true }"), many))[0]


# Text, and what the message says. Every one is refused by AMCT as well.
FAULTS = [
    ('skip_layers: "fc"\nskip_layers: "fc"', 'line 2, "fc": skip_layers names it twice \\(first on line 1\\)'),
    ('skip_layer_types: ["Gemm", "Gemm"]', '"Gemm": skip_layer_types names it twice'),
    ('skip_fusion_layers: ["conv", "conv"]', '"conv": skip_fusion_layers names it twice'),
    (of_type("Gemm", "") * 2, '"Gemm": override_layer_types names it twice'),
    (of_layer("fc", "") + "\n" + of_layer("fc", ""), 'line 2, "fc": override_layer_configs names it twice'),
    ('skip_layers: "fcc"', 'line 1, "fcc": skip_layers names it, but the model has no such node; did you mean "fc"?'),
    ('skip_layers: "zzzz"', "amct_onnx inspect"),
    ('skip_layers: "relu"', '"relu": skip_layers names it, but a Relu cannot be quantized; delete'),
    ('skip_layer_types: "Relu"', '"Relu": skip_layer_types names a type that is not quantized; choose from Conv'),
    ('skip_layer_types: "Conv2d"', '"Conv2d": .*; did you mean Conv\\?'),
    (
        'skip_layer_types: ["Conv", "Gemm", "MatMul", "AveragePool", "ConvTranspose"]',
        "skip_layer_types leaves no layer to quantize",
    ),
    (f"skip_layers: [{', '.join(f'{name!r}' for name in FACTS.layers)}]", "skip_layers leaves no layer to quantize"),
    (of_layer("fcc", ""), '"fcc": the config names it, but the model has no such node; did you mean "fc"'),
    (of_layer("relu", ""), '"relu": the config names it, but a Relu cannot be quantized'),
    (of_layer("conv_computed", ""), '"conv_computed": the layer cannot be quantized: its weight is computed'),
    (of_type("Linear", ""), '"Linear": override_layer_types names a type that is not quantized'),
    ('skip_fusion_layers: "nope"', '"nope": skip_fusion_layers names it, but the model has no such node'),
    ('skip_fusion_layers: "fc"', '"fc": .* nothing is fused into a Gemm, only into Conv: name that layer'),
    ("batch_num: 0", "line 1: batch_num is 0, but it is at least 1"),
    ("batch_num: -1", "batch_num, which holds 0 to 4294967295"),
    ("batch_nun: 1", "unknown field batch_nun; did you mean batch_num"),
    ("activation_offset: maybe", "activation_offset takes true or false, not maybe"),
    ("fakequant_precision_mode: FP16", "takes one of FORCE_FP16_QUANT, not FP16"),
    (common("ifmr_quantize { max_percentile: 0.5 }"), "max_percentile is 0.5, but it is more than 0.5"),
    (common("ifmr_quantize { max_percentile: 1.1 }"), "max_percentile is 1.1"),
    (common("ifmr_quantize { min_percentile: nan }"), "min_percentile is nan"),
    (common("ifmr_quantize { search_range_start: 0 }"), "search range is 0.0 to 1.3, but 0 < start < end"),
    (common("ifmr_quantize { search_range_end: 0.7 }"), "search range is 0.7 to 0.7"),
    (common("ifmr_quantize { search_range_end: inf }"), "search range is 0.7 to inf"),
    (common("ifmr_quantize { search_range_end: 1e39 }"), "search range is 0.7 to inf"),
    (common("ifmr_quantize { search_step: 0 }"), "search_step is 0.0, but it is more than 0"),
    (common("ifmr_quantize { search_step: 0.7 }"), "search_step is 0.7, but .* the width of the range, 0.6"),
    (common("ifmr_quantize { search_step: 1e-7 }"), "1e-07 divides .* more than 10000 steps; make it larger"),
    (common("ifmr_quantize { search_range_end: 1e30 }"), "search_step 0.01 divides .* more than 10000 steps"),
    (common("hfmg_quantize { num_of_bins: 1000 }"), "num_of_bins is 1000, but it is 1024, 2048, 4096 or 8192"),
    (common("arq_quantize { quant_bits: 5 }"), "quant_bits is 5, but it is 4, 6, 7 or 8"),
    (common("dmq_balancer { migration_strength: 0.1 }"), "migration_strength is 0.1, but it lies between 0.2 and 0.8"),
    (common("dmq_balancer { migration_strength: 0.81 }"), "migration_strength is 0.81"),
    (common("ada_quantize { num_iteration: 0 }"), "num_iteration is 0, but it is at least 1"),
    (common("ada_quantize { reg_param: 1 }"), "reg_param is 1.0, but it lies above 0 and below 1"),
    (common("ada_quantize { warm_start: 0 }"), "warm_start is 0.0, but it lies above 0 and below 1"),
    (common("ada_quantize { beta_range_start: 2 }"), "beta range is 2.0 to 2.0, but it falls"),
    (common("ada_quantize { beta_range_end: 0 }"), "beta range is 20.0 to 0.0"),
    (common("nuq_quantize { num_steps: 8 }"), "num_steps is 8, but it lies between 16 and 32"),
    ('nuq_config { mapping_file: "m" nuq_quantize { num_of_iteration: 6 } }', "num_of_iteration is 6"),
    ("nuq_config { }", "mapping_file is missing and must be given"),
    ("override_layer_types { calibration_config {} }", "layer_type is missing and must be given"),
    ('override_layer_configs { layer_name: "fc" }', "calibration_config is missing and must be given"),
    ("tensor_quantize { input_index: 0 }", "layer_name is missing; tensor_quantize needs layer_name and input_index"),
    ('tensor_quantize { layer_name: "add" }', '"add": input_index is missing'),
    ('tensor_quantize { layer_name: "conv" input_index: 0 }', "takes inputs of Add and MaxPool, not of a Conv"),
    ('tensor_quantize { layer_name: "ad" input_index: 0 }', 'no such node; did you mean "add"'),
    ('tensor_quantize { layer_name: "add" input_index: 2 }', "this Add has 2 inputs, counted from 0"),
    ('tensor_quantize { layer_name: "max" input_index: 0 }' * 2, "names input 0 twice"),
    (
        'tensor_quantize { layer_name: "add" input_index: 0 ifmr_quantize { dst_type: INT16 } }',
        "dst_type asks for 16 bits, but inputs are quantized to 8 bits only",
    ),
]


@pytest.mark.parametrize(("text", "words"), FAULTS)
def test_fault(text: str, words: str) -> None:
    message = fault(text)
    assert message.startswith("my.cfg")
    assert re.search(words, message)


# Text whose value lies just inside its bounds.
INSIDE = [
    "ifmr_quantize { max_percentile: 1 min_percentile: 0.51 }",
    "ifmr_quantize { search_range_start: 0.8 search_range_end: 1.2 search_step: 0.4 }",
    *(f"hfmg_quantize {{ num_of_bins: {bins} }}" for bins in (1024, 2048, 4096, 8192)),
    "dmq_balancer { migration_strength: 0.2 }",
    "dmq_balancer { migration_strength: 0.8 }",
    *(f"arq_quantize {{ quant_bits: {bits} }}" for bits in (4, 6, 7, 8)),
]


@pytest.mark.parametrize("inner", INSIDE)
def test_inside_the_bounds(inner: str) -> None:
    assert not resolved(common(inner), only("conv")).warnings


def test_all_faults_are_told_together_in_the_order_of_lines() -> None:
    message = fault(f'skip_layers: "nope"\nbatch_num: 0\n{common("hfmg_quantize { num_of_bins: 3 }")}')
    assert [line.split(":")[0].split(",")[0] for line in message.splitlines()] == [
        "my.cfg has 3 faults",
        "  line 1",
        "  line 2",
        "  line 3",
    ]


def test_a_layer_named_like_a_parameter() -> None:
    facts = replace(FACTS, layers={"batch_num": replace(CONV, name="batch_num")})
    assert '"batch_num": a layer of the model bears the name of a global parameter' in fault("", facts)


def test_nothing_to_quantize_at_all() -> None:
    with pytest.raises(NothingToCompressError, match="no layer of the model can be quantized; 'conv_computed'"):
        resolved("", only())


def test_no_layer_to_balance() -> None:
    with pytest.raises(ConfigError, match=r"my\.cfg asks to balance no layer; add dmq_balancer"):
        resolved("").balanced()
    assert resolved(of_layer("fc", "dmq_balancer {}")).balanced() == {"fc": 0.5}


class TestStandIns:
    def test_learned_rounding(self) -> None:
        config = resolved("\n" + common("ada_quantize { channel_wise: false }"), only("conv", "fc"))
        assert config.layers["conv"].options.weight == WeightOptions(
            algorithm=WeightAlgorithm.MSE, bits=8, per_channel=False
        )
        assert len(config.warnings) == 1
        assert "line 2: ada_quantize is accepted, but rounding is not learned yet" in warnings(config)[0]
        origin = config.layers["conv"].origins["weight.algorithm"]
        assert origin == "common_config, line 2 (ada_quantize stands there)"

    def test_one_warning_for_many(self) -> None:
        config = resolved(of_layer("conv", "ada_quantize {}") + of_layer("fc", "ada_quantize {}"))
        assert len(config.warnings) == 1
        assert "here and 1 times more" in warnings(config)[0]

    def test_non_uniform(self) -> None:
        config = resolved(
            'nuq_config { mapping_file: "m.json" nuq_quantize { num_steps: 32 } }\n'
            + of_layer("conv", "nuq_quantize { num_steps: 16 num_of_iteration: 0 }")
        )
        assert config.layers["conv"].options.weight.algorithm is WeightAlgorithm.ARQ
        assert sum("uniformly" in warning for warning in warnings(config)) == 2

    def test_joint_quant(self) -> None:
        config = resolved("joint_quant: true")
        assert config.joint_quant
        assert "joint_quant is accepted, but without effect" in warnings(config)[0]


def test_precision_mode() -> None:
    assert resolved("fakequant_precision_mode: FORCE_FP16_QUANT").force_fp16_quant


def test_tensor_quantize() -> None:
    config = resolved(
        'tensor_quantize { layer_name: "add" input_index: 1 }'
        'tensor_quantize { layer_name: "max" input_index: 0 hfmg_quantize { num_of_bins: 2048 asymmetric: false } }'
    )
    assert config.tensors == (
        TensorOptions(
            node="add", input_index=1, activation=ActivationOptions(algorithm=ActivationAlgorithm.IFMR, symmetric=False)
        ),
        TensorOptions(
            node="max",
            input_index=0,
            activation=ActivationOptions(algorithm=ActivationAlgorithm.HFMG, symmetric=True, num_of_bins=2048),
        ),
    )


def test_tensor_quantize_alone_is_enough() -> None:
    text = 'skip_layers: "fc" tensor_quantize { layer_name: "add" input_index: 1 }'
    assert len(resolved(text, only("fc")).tensors) == 1


class TestArguments:
    def test_they_say_the_same_as_a_file(self) -> None:
        config = resolve(arguments_request(skip_layers=["fc"], batch_num=3, activation_offset=False), FACTS)
        assert config == resolved('skip_layers: "fc" batch_num: 3 activation_offset: false')

    @pytest.mark.parametrize(
        ("arguments", "words"),
        [
            ({"batch_num": 0}, "batch_num is 0, but it is at least 1"),
            ({"batch_num": 1.5}, "batch_num is 1.5, but it is a whole number"),
            ({"batch_num": True}, "batch_num is True"),
            ({"activation_offset": 1}, "activation_offset is 1"),
            ({"skip_layers": [1]}, "skip_layers holds 1"),
            ({"skip_layers": ["nope"]}, '"nope": skip_layers names it, but the model has no such node'),
            ({"skip_layers": ["fc", "fc"]}, "names it twice; delete"),
        ],
    )
    def test_faults(self, arguments: dict[str, object], words: str) -> None:
        with pytest.raises(ConfigError, match=words):
            resolve(arguments_request(**arguments), FACTS)
