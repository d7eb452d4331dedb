"""Reading simple configs: protobuf's own parser is the oracle for what is legal, published forms are typed in."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from google.protobuf import text_format

from amct_onnx.config import ActivationAlgorithm, WeightAlgorithm, load_request, parse_request, resolve
from amct_onnx.config.shorten import shortest
from amct_onnx.errors import ConfigError
from amct_onnx.proto.calibration_config_onnx import AMCTConfig
from tests.config.model_facts import FACTS

# One config in the form of each generation.
FORMS = {
    "5": """
        # global parameters
        batch_num : 2
        activation_offset : true
        skip_layers : "conv_odd"
        skip_layers : "pool"
        skip_layer_types:"MatMul"
        do_fusion: true
        skip_fusion_layers : "conv"
        common_config : {
            arq_quantize : { channel_wise : true }
            ifmr_quantize : {
                search_range_start : 0.75
                search_range_end : 1.25
                search_step : 0.02
                max_percentile : 0.99999
                min_percentile : 0.99999
                asymmetric : true
            }
        }
        override_layer_types : {
            layer_type : "Gemm"
            calibration_config : {
                arq_quantize : { channel_wise : false }
                ifmr_quantize : { search_range_start : 0.8 search_range_end : 1.2 search_step : 0.02 }
            }
        }
        """,
    "5 with old blocks": """
        batch_num: 1
        conv_calibration_config: { arq_quantize: { channel_wise: true } ifmr_quantize: { search_step: 0.03 } }
        fc_calibration_config: { arq_quantize: { channel_wise: false } ifmr_quantize: { search_step: 0.04 } }
        """,
    "6 with non-uniform weights": """
        batch_num : 1
        activation_offset : true
        nuq_config {
            mapping_file : "./net_dumped.json"
            nuq_quantize : { num_steps : 32 num_of_iteration : 2 }
        }
        """,
    "7 with joint quantization": """
        batch_num : 2
        joint_quant : false
        common_config : { arq_quantize : { channel_wise : true } hfmg_quantize : { num_of_bins : 2048 } }
        override_layer_configs : {
            layer_name : "fc"
            calibration_config : {
                arq_quantize : { channel_wise : false }
                ifmr_quantize : { asymmetric : false }
                dmq_balancer : { migration_strength : 0.6 }
            }
        }
        """,
    "8 with widths and inputs": """
        batch_num : 4
        fakequant_precision_mode : FORCE_FP16_QUANT
        common_config {
            arq_quantize { channel_wise: false, quant_bits: 8 };
            ifmr_quantize { dst_type: INT8 }
        }
        override_layer_configs {
            layer_name: "conv"
            calibration_config { ada_quantize { num_iteration: 500 warm_start: 0.3 } ifmr_quantize { dst_type: INT16 } }
        }
        tensor_quantize : { layer_name : "add" input_index : 0 ifmr_quantize : { asymmetric : false } }
        """,
    "6 with weights of each kind": """
        batch_num : 1
        common_config : {
            ada_quantize : {
                num_iteration : 2000 reg_param : 0.02 beta_range_start : 18 beta_range_end : 3 warm_start : 0.1
                channel_wise : true
            }
            ifmr_quantize : { search_range_start : 0.7 search_range_end : 1.3 search_step : 0.01 }
        }
        override_layer_types : {
            layer_type : "ConvTranspose"
            calibration_config : { nuq_quantize : { num_steps : 16 num_of_iteration : 0 channel_wise : false } }
        }
        """,
    "7 with an input": """
        do_fusion : true
        skip_layer_types : "AveragePool"
        tensor_quantize : {
            layer_name : "max"
            input_index : 0
            hfmg_quantize : { num_of_bins : 1024 asymmetric : true dst_type : INT8 }
        }
        """,
    "9": """
        batch_num : 8
        activation_offset : false
        do_fusion : false
        common_config : { hfmg_quantize : { num_of_bins : 8192 asymmetric : true dst_type : INT8 } }
        override_layer_types < layer_type : 'MatMul' calibration_config < dmq_balancer < > > >
        """,
}


@pytest.mark.parametrize("text", FORMS.values(), ids=FORMS.keys())
def test_forms_load_and_protobuf_agrees(text: str) -> None:
    message = text_format.Parse(text, AMCTConfig())
    config = resolve(parse_request(text), FACTS)
    assert (config.batch_num, config.activation_offset) == (message.batch_num, message.activation_offset)
    assert (config.do_fusion, config.joint_quant) == (message.do_fusion, message.joint_quant)
    assert list(config.skip_fusion_layers) == list(message.skip_fusion_layers)


def fields(descriptor: Any, found: set[str]) -> set[str]:
    """Full names of all fields of a message and of those in it."""
    for field in descriptor.fields:
        if field.full_name not in found:
            found.add(field.full_name)
            if field.message_type is not None:
                fields(field.message_type, found)
    return found


def set_fields(message: Any) -> Iterator[str]:
    """Full names of the fields that a message and those in it set."""
    for field, value in message.ListFields():
        yield field.full_name
        if field.message_type is not None:
            for inner in [value] if hasattr(value, "ListFields") else value:
                yield from set_fields(inner)


def test_the_forms_leave_out_no_field() -> None:
    used = {name for text in FORMS.values() for name in set_fields(text_format.Parse(text, AMCTConfig()))}
    assert fields(AMCTConfig.DESCRIPTOR, set()) - used == set()


def test_values_of_a_form() -> None:
    layers = resolve(parse_request(FORMS["5"]), FACTS).layers
    conv, fc = layers["conv"].options, layers["fc"].options
    assert (conv.activation.search_start, conv.activation.search_end, conv.activation.search_step) == (0.75, 1.25, 0.02)
    assert (conv.activation.max_percentile, conv.activation.min_percentile) == (0.99999, 0.99999)
    assert (fc.activation.search_start, fc.weight.per_channel, conv.weight.per_channel) == (0.8, False, True)
    assert {name for name, layer in layers.items() if not layer.enabled} == {"conv_odd", "pool", "matmul"}


def test_values_of_another_form() -> None:
    options = resolve(parse_request(FORMS["8 with widths and inputs"]), FACTS).layers["conv"].options
    assert (options.activation.bits, options.activation.algorithm) == (16, ActivationAlgorithm.IFMR)
    assert options.weight.algorithm is WeightAlgorithm.MSE


# Spellings of one and the same config.
SPELLINGS = [
    'batch_num: 2 skip_layers: "fc" skip_layers: "pool" common_config { ifmr_quantize { asymmetric: false } }',
    'batch_num:2;skip_layers:["fc",\n"pool"],common_config<ifmr_quantize:{asymmetric:False}>',
    '#c\nbatch_num #c\n:\n0x2 skip_layers: \'f\' "c" skip_layers: "p\\x6fol" '
    "common_config : { ifmr_quantize { asymmetric: f}}",
    'batch_num: 02, skip_layers: ["fc"] skip_layers: ["pool"] common_config { ifmr_quantize { asymmetric: 0 } } #',
]


@pytest.mark.parametrize("text", SPELLINGS)
def test_spellings(text: str) -> None:
    assert text_format.Parse(text, AMCTConfig()) == text_format.Parse(SPELLINGS[0], AMCTConfig())
    assert resolve(parse_request(text), FACTS) == resolve(parse_request(SPELLINGS[0]), FACTS)


@pytest.mark.parametrize(
    ("spelling", "value"), [("true", True), ("True", True), ("t", True), ("1", True), ("f", False)]
)
def test_bools(spelling: str, value: bool) -> None:
    text = f"activation_offset: {spelling}"
    assert text_format.Parse(text, AMCTConfig()).activation_offset is value
    assert resolve(parse_request(text), FACTS).activation_offset is value


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("batch_num 2", r"line 1, column 11: expected \":\" after batch_num"),
        ("\ncommon_config : {", r"line 2, column 1: .* is never closed"),
        ("common_config : { } }", r"line 1, column 21: this .* does not close"),
        ('skip_layers: "a\nb: 1\nc: 2\nd: 3', "no closing quote"),
        ("batch_num: {", "expected a whole number for batch_num"),
        ("=", "expected the name of a field"),
    ],
)
def test_no_text_format(text: str, words: str) -> None:
    with pytest.raises(text_format.ParseError):
        text_format.Parse(text, AMCTConfig())
    with pytest.raises(ConfigError, match=words):
        parse_request(text, source="my.cfg")


def test_a_block_that_stands_twice_is_refused() -> None:
    with pytest.raises(ConfigError, match="common_config stands twice, on line 1 and on line 2"):
        resolve(parse_request("common_config {}\ncommon_config {}"), FACTS)


@pytest.mark.parametrize(
    ("text", "attribute", "value"),
    [
        ("ifmr_quantize {}\nhfmg_quantize {}", "activation", ActivationAlgorithm.HFMG),
        ("hfmg_quantize { asymmetric: false }\nifmr_quantize {}", "activation", ActivationAlgorithm.IFMR),
        ("ada_quantize {}\narq_quantize {}", "weight", WeightAlgorithm.ARQ),
        ("arq_quantize { quant_bits: 7 }\nada_quantize {}", "weight", WeightAlgorithm.MSE),
    ],
)
def test_the_last_of_a_oneof_wins_with_a_warning(text: str, attribute: str, value: object) -> None:
    config = resolve(parse_request(f"common_config {{ {text} }}"), FACTS)
    part = getattr(config.layers["conv"].options, attribute)
    assert part.algorithm is value
    assert part.bits == 8
    first, second = (line.split()[0] for line in text.splitlines())
    assert f"line 2: {second} takes the place of {first} on line 1" in str(config.warnings[0])
    assert not config.layers["conv"].options.activation.symmetric


def test_a_field_that_stands_twice_is_a_warning() -> None:
    config = resolve(parse_request("batch_num: 2\nbatch_num: 3"), FACTS)
    assert config.batch_num == 3
    assert "batch_num stands twice" in str(config.warnings[0])


@pytest.mark.parametrize("text", ["0.7", "1.3", "0.01", "0.999999", "0.02", "20", "1e-8", "0.1", "123456.7"])
def test_fractions_keep_their_digits(text: str) -> None:
    assert shortest(float(text)) == float(text)


def test_fractions_beyond_float32_are_shortened() -> None:
    assert shortest(0.123456789) == 0.12345679


def test_file(tmp_path) -> None:
    path = tmp_path / "my.cfg"
    path.write_bytes(b"\xef\xbb\xbf" + 'skip_layers: "fc" # 注释\r\n'.encode())
    assert not resolve(load_request(path), FACTS).layers["fc"].enabled


@pytest.mark.parametrize(
    ("content", "words"),
    [(None, "cannot be read: No such file"), (b"skip_layers: \xff", "byte 0xff is not UTF-8"), (b"a\0b", "zero byte")],
)
def test_no_file(tmp_path, content: bytes | None, words: str) -> None:
    path = tmp_path / "my.cfg"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ConfigError, match=words) as caught:
        load_request(path)
    assert str(caught.value).startswith(str(path))
