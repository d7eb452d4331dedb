"""Quantizing by a config: what it decides, which feeds are used, and what the report says."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from amct_onnx import ConfigError, DataError, UsageError, apply, quantize, resolve_config
from amct_onnx.config import format_json, parse_request
from tests.models import normal, parse

NET = parse(
    """
    [conv] a = Conv(x, w1)
    [norm] b = BatchNormalization(a, s, s, z, s)
    [conv2] c = Conv(b, w2)
    [mean] d = GlobalAveragePool(c)
    [flat] e = Flatten(d)
    [fc] y = Gemm(e, w3)
    """,
    "float[1,3,8,8] x",
    "float[1,5] y",
    {
        "w1": normal(4, 3, 3, 3, seed=1),
        "w2": normal(6, 4, 3, 3, seed=2),
        "w3": normal(6, 5, seed=3),
        "s": np.full(4, 2, np.float32),
        "z": np.zeros(4, np.float32),
    },
)
FEEDS = [{"x": normal(1, 3, 8, 8, seed=seed)} for seed in range(4)]


@pytest.fixture
def cfg(tmp_path):
    def write(text: str, name: str = "my.cfg"):
        path = tmp_path / name
        path.write_text(text)
        return path

    return write


def test_a_config_decides(cfg) -> None:
    path = cfg('batch_num: 4 skip_layers: "fc" activation_offset: false')
    result = quantize(NET, FEEDS, config=path)
    layers = result.record.layers
    assert set(layers) == {"conv", "conv2"}
    assert {layer.offset_d for layer in layers.values()} == {0}
    assert len(layers["conv"].scale_w) == 4


@pytest.mark.parametrize(
    ("name", "text", "reason"),
    [
        ("a.cfg", '\nskip_layers: "fc"', "skip_layers, line 2"),
        ("a.cfg", 'skip_layer_types: "Gemm"', "skip_layer_types, line 1"),
        ("a.json", '{"conv":{"quant_enable":true},\n"fc":{"quant_enable":false}}', "not enabled, line 2"),
        ("a.json", '{"conv":{"quant_enable":true}}', "the config does not list it"),
    ],
)
def test_what_a_config_leaves_float_is_told_with_its_line(name: str, text: str, reason: str, cfg) -> None:
    left = {refusal.node: refusal.reason for refusal in quantize(NET, FEEDS, config=cfg(text, name)).report.refusals}
    assert left["fc"] == f"the config leaves it float: {reason}"


def test_amcts_defaults_are_not_ours(cfg) -> None:
    by_config = quantize(NET, FEEDS, config=cfg("batch_num: 4")).record
    assert by_config == quantize(NET, FEEDS, act="ifmr", weights="arq").record
    assert by_config != quantize(NET, FEEDS).record


def test_one_scale_for_a_matrix_is_the_configs_choice(cfg) -> None:
    for forms in (["qdq"], ["qdq", "ascend"]):
        result = quantize(NET, FEEDS, config=cfg(""), formats=forms)
        assert len(result.record.layers["fc"].scale_w) == 1
        assert "ascend form is asked for" not in " ".join(result.report.notes)


def test_json_says_the_same(cfg) -> None:
    config = resolve_config(NET, cfg("batch_num: 3 common_config { hfmg_quantize {} }"))
    path = cfg(format_json(config), "my.json")
    assert quantize(NET, FEEDS, config=path).record == quantize(NET, FEEDS, config=config).record


def test_batch_num_limits_the_feeds(cfg) -> None:
    result = quantize(NET, FEEDS, config=cfg("batch_num: 2"))
    assert result.report.feeds == 2
    assert "batch_num is 2: the first 2 of 4 feeds were used to find the scales" in result.report.notes
    assert result.record == quantize(NET, FEEDS[:2], config=cfg("batch_num: 2")).record


def test_only_the_wanted_feeds_are_read(cfg) -> None:
    def feeds():
        yield from FEEDS[:2]
        raise AssertionError("a third feed was asked for")

    assert quantize(NET, feeds(), config=cfg("batch_num: 2")).report.feeds == 2


def test_too_few_feeds(cfg) -> None:
    fault = "batch_num is 5, but the calibration data holds 4 feeds; give more data"
    with pytest.raises(DataError, match=rf"my\.cfg: {fault}"):
        quantize(NET, FEEDS, config=cfg("batch_num: 5"))
    with pytest.raises(DataError, match=fault):
        quantize(NET, iter(FEEDS), config=cfg("batch_num: 5"))


def test_statistics_stand_for_their_feeds(cfg) -> None:
    statistics = quantize(NET, FEEDS).calibration
    result = quantize(NET, statistics, config=cfg("batch_num: 2"))
    assert "the statistics were taken from 4 feeds; all of them count" in " ".join(result.report.notes)
    with pytest.raises(DataError, match=r"my\.cfg: batch_num is 5"):
        quantize(NET, statistics, config=cfg("batch_num: 5"))


@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        ({"act": "mse"}, "act"),
        ({"weights": "arq"}, "weights"),
        ({"skip": ["fc"]}, "skip"),
        ({"symmetric": True}, "symmetric"),
        ({"gemm_per_channel": True}, "gemm_per_channel"),
        ({"dmq": 0.5}, "dmq"),
        ({"skip_fusion": ["conv"]}, "skip_fusion"),
        ({"do_fusion": False}, "do_fusion"),
    ],
)
def test_arguments_that_a_config_decides(cfg, arguments, name: str) -> None:
    with pytest.raises(UsageError, match=f"config and {name} exclude each other"):
        quantize(NET, FEEDS, config=cfg(""), **arguments)


@pytest.mark.parametrize("text", ["do_fusion: false", 'skip_fusion_layers: "conv"'])
def test_fusion_that_is_not_wanted(cfg, text: str) -> None:
    result = quantize(NET, FEEDS, config=cfg(text))
    assert result.record.layers["conv"].skip_fusion
    again = apply(NET, result.record, tensors=result.tensors)
    # Under skip_fusion_layers the layer behind may take the BatchNormalization in.
    stands_for = {layer.name: layer.source_nodes for layer in result.report.layers}
    assert stands_for["conv"] == ("conv",)
    for form, model in result.models.items():
        proto = model.to_proto()
        kept = "BatchNormalization" in {node.op_type for node in proto.graph.node}
        assert kept == ("do_fusion" in text)
        assert again.models[form].to_proto().graph == proto.graph


def test_fusion_is_kept_apart_for_a_layer_that_stays_float(cfg) -> None:
    result = quantize(NET, FEEDS, config=cfg('do_fusion: false skip_layers: "conv"'))
    assert result.record.layers["conv"].is_empty
    assert result.record.layers["conv"].skip_fusion
    assert "conv" not in {layer.name for layer in result.report.layers}


def test_warnings_and_what_is_not_done_are_reported(cfg) -> None:
    text = "joint_quant: true common_config { arq_quantize { channel_wise: true } }"
    notes = quantize(NET, FEEDS, config=cfg(text)).report.notes
    assert any("my.cfg, line 1: joint_quant is accepted" in note for note in notes)
    assert any('my.cfg, line 1: channel_wise: true is not possible for "fc"' in note for note in notes)


def test_every_kind_of_setting_reaches_the_record(cfg) -> None:
    text = """
    batch_num: 4  fakequant_precision_mode: FORCE_FP16_QUANT
    override_layer_configs { layer_name: "conv" calibration_config { ifmr_quantize { dst_type: INT16 } } }
    override_layer_configs { layer_name: "conv2" calibration_config {
        arq_quantize { quant_bits: 6 channel_wise: false } dmq_balancer { migration_strength: 0.6 } } }
    """
    layers = quantize(NET, FEEDS, config=cfg(text), trial=False).record.layers
    assert (layers["conv"].act_type, layers["conv"].wts_type) == ("INT16", "INT8")
    assert (layers["conv2"].act_type, layers["conv2"].wts_type) == ("INT8", "INT6")
    assert len(layers["conv2"].scale_w) == 1
    assert len(layers["conv2"].tensor_balance_factor) == 4
    assert not layers["conv"].tensor_balance_factor
    assert all(float(np.float16(layer.scale_d)) == layer.scale_d for layer in layers.values())


def test_balancing_uses_the_wanted_feeds_and_keeps_fusion_apart(cfg) -> None:
    text = "batch_num: 2 do_fusion: false common_config { dmq_balancer {} }"
    outlier = [*FEEDS[:2], {"x": FEEDS[0]["x"] * 100}]
    by_two, by_three = (quantize(NET, feeds, config=cfg(text), trial=False).record for feeds in (FEEDS[:2], outlier))
    assert by_two == by_three
    assert by_two.layers["conv"].skip_fusion


def test_a_config_that_was_resolved_for_another_model() -> None:
    config = resolve_config(NET, parse_request(""))
    other = replace(config, layers={"conv": config.layers["conv"]})
    with pytest.raises(ConfigError, match="resolved for another model"):
        quantize(NET, FEEDS, config=other)


def test_a_target_without_zero_points(cfg) -> None:
    result = quantize(NET, FEEDS, config=cfg(""), formats=["qdq"], qdq_target="tensorrt")
    assert {layer.offset_d for layer in result.record.layers.values()} == {0}
