"""The config of the search for prune ratios: what it says, and every fault with its line."""

from __future__ import annotations

from pathlib import Path

import pytest
from google.protobuf import text_format

from amct_onnx.config.auto_prune import load_auto_prune, parse_auto_prune
from amct_onnx.errors import ConfigError
from amct_onnx.proto.retrain_config_onnx import AutoChannelPruneConfig


def test_defaults() -> None:
    config = parse_auto_prune("compress_ratio: 1.25")
    message = text_format.Parse("compress_ratio: 1.25", AutoChannelPruneConfig())
    assert (config.ascend_optimized, config.max_prune_ratio, config.test_iteration, config.overrides) == (
        message.ascend_optimized,
        message.max_prune_ratio,
        message.test_iteration,
        None,
    )
    assert config.saving == pytest.approx(0.2)


def test_every_field(tmp_path: Path) -> None:
    (tmp_path / "o.cfg").write_text('skip_layers: "a"')
    (tmp_path / "a.cfg").write_text(
        f"compress_ratio: 2 # half\nascend_optimized: false max_prune_ratio: .7\ntest_iteration: 5 "
        f'override_prune_cfg: "{tmp_path / "o.cfg"}"'
    )
    config = load_auto_prune(tmp_path / "a.cfg")
    assert (config.compress_ratio, config.ascend_optimized, config.max_prune_ratio, config.test_iteration) == (
        2,
        False,
        0.7,
        5,
    )
    assert config.saving == 0.5
    assert config.files == (tmp_path / "a.cfg", tmp_path / "o.cfg")
    assert config.overrides is not None
    assert set(config.overrides.prune_skips.layer_origins) == {"a"}


def test_the_schema_is_the_documented_one() -> None:
    fields = AutoChannelPruneConfig.DESCRIPTOR.fields_by_name
    assert {name: field.number for name, field in fields.items()} == {
        "compress_ratio": 1,
        "ascend_optimized": 2,
        "max_prune_ratio": 3,
        "test_iteration": 4,
        "override_prune_cfg": 10,
    }


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", r"a\.cfg, line 1: compress_ratio is missing"),
        *(
            (f"\ncompress_ratio: {value}", r"a\.cfg, line 2: compress_ratio is .* a number above 1.*correct it")
            for value in ("1", "1.0", "0.5", "-2", "0", "nan", "inf")
        ),
        *(
            (f"compress_ratio: 2\nmax_prune_ratio: {value}", r"a\.cfg, line 2: max_prune_ratio is .* at most 1")
            for value in ("0", "1.01", "-0.5", "nan")
        ),
        *(
            (f"compress_ratio: 2\ntest_iteration: {value}", rf"a\.cfg, line 2: test_iteration is {value}, .* least 1")
            for value in ("0", "-3")
        ),
        ("compress_ratio: 2\ntest_iteration: 1.5", r"a\.cfg, line 2: .*test_iteration"),
        ("compress_ratio: two", r"a\.cfg, line 1: compress_ratio takes a number, not two$"),
        ("compress_ratio: 2\ncompres_ratio: 3", r"a\.cfg, line 2: unknown field compres_ratio"),
        ("compress_ratio: 1\nmax_prune_ratio: 2", r"a\.cfg has 2 faults:\n  line 1: .*\n  line 2: "),
        ("compress_ratio: 2 {", r"a\.cfg, line 1, column 19"),
        ("compress_ratio: 2\n\noverride_prune_cfg: 'no.cfg'", r"a\.cfg, line 3: override_prune_cfg: no\.cfg cannot be"),
        ("compress_ratio: 2\noverride_prune_cfg: ''", r"a\.cfg, line 2: override_prune_cfg: .*cannot be read"),
    ],
)
def test_faults(text: str, words: str) -> None:
    with pytest.raises(ConfigError, match=f"^{words}"):
        parse_auto_prune(text, source="a.cfg")


FILTERS = "filter_pruner { balanced_l2_norm_filter_prune { prune_ratio: 0.5 } }"
RULE = "an override_prune_cfg only skips layers and overrides their filter_pruner; delete it"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (f"\nprune_config {{ {FILTERS} }}", f"o.cfg, line 2: FilterPruning stands here, but {RULE}"),
        (
            'override_layer_configs {\nlayer_name: "a"\nprune_config { n_out_of_m_pruner { l1_selective_prune {} } } }',
            f'o.cfg, line 3, "a": SelectivePruning stands here, but {RULE}',
        ),
        (
            'override_layer_types { layer_type: "Conv"\nretrain_data_quant_config { ulq_quantize {} } }',
            'o.cfg, line 2, "Conv": DataQuant stands here',
        ),
        ("retrain_weight_quant_config { arq_retrain {} }", "o.cfg, line 1: WeightQuant stands here"),
        ('\n\nquant_skip_layers: "a"', "o.cfg, line 3: quant_skip_layers stands here"),
        ('quant_skip_types: "Conv"', "o.cfg, line 1: quant_skip_types stands here"),
        ("batch_num: 2", "o.cfg, batch_num or fakequant_precision_mode stands there"),
        ("compress_ratio: 2", "o.cfg, line 1: unknown field compress_ratio"),
        ("skip_layers: ", "o.cfg, line 1"),
    ],
)
def test_faults_of_overrides(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, words: str) -> None:
    monkeypatch.chdir(tmp_path)
    Path("o.cfg").write_text(text)
    with pytest.raises(ConfigError) as caught:
        parse_auto_prune("compress_ratio: 2 override_prune_cfg: 'o.cfg'", source="a.cfg")
    assert str(caught.value).startswith(words)


def test_skips_and_ratios_are_what_overrides_may_hold(tmp_path: Path) -> None:
    path = tmp_path / "o.cfg"
    path.write_text(f"""
        skip_layers: "a" skip_layer_types: "Gemm" regular_prune_skip_layers: "b" regular_prune_skip_types: "Linear"
        override_layer_configs {{ layer_name: "c" prune_config {{ {FILTERS} }} }}
        override_layer_types {{ layer_type: "Conv" prune_config {{ {FILTERS} }} }}""")
    config = parse_auto_prune(f'compress_ratio: 2 override_prune_cfg: "{path}"')
    assert config.overrides is not None
    assert [named.name for named, _ in config.overrides.layers] == ["c"]
