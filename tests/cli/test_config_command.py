"""`config show`, and `quantize --config`."""

from __future__ import annotations

import json
import re

import numpy as np
import onnx
import pytest

from amct_onnx.cli import main
from tests.models import normal, parse

NET = parse(
    "[conv] a = Conv(x, w1) [mean] b = GlobalAveragePool(a) [flat] c = Flatten(b) [fc] y = Gemm(c, w2) "
    "[late] z = Conv(x, k)",
    "float[1,3,8,8] x, float[1,3,1,1] k",
    "float[1,5] y, float[1,1,8,8] z",
    {"w1": normal(4, 3, 3, 3), "w2": normal(4, 5)},
)
CFG = """batch_num: 2
common_config {
  arq_quantize { channel_wise: true }
  ifmr_quantize { search_step: 0.02 }
}
skip_layers: "fc"
joint_quant: true
"""


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A working folder with a model, its config in both forms, and three feeds."""
    monkeypatch.chdir(tmp_path)
    onnx.save(NET, "m.onnx")
    (tmp_path / "my.cfg").write_text(CFG)
    (tmp_path / "data").mkdir()
    for number in range(3):
        np.savez(f"data/{number}.npz", x=normal(1, 3, 8, 8, seed=number), k=normal(1, 3, 1, 1))
    return tmp_path


def test_show(here, capsys) -> None:
    assert main(["config", "show", "my.cfg", "--model", "m.onnx"]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    for words in (
        r"batch_num: 2 \(batch_num, line 1\)",
        r"activation_offset: true \(default\)",
        r"skip_fusion_layers: none \(default\)",
        r"conv +Conv +ifmr, 8 bits, asymmetric, search_step 0\.02 +arq, 8 bits, per channel +no +yes",
        r"common_config, line 4: activation\.algorithm, activation\.search_step",
        r"fc .* no: skip_layers, line 6",
        r"late +Conv .*no: its weight is computed at run time",
        "1 of 2 layers are quantized",
        "warning: line 7: joint_quant is accepted",
    ):
        assert re.search(words, out), words


def test_show_json(here, capsys) -> None:
    assert main(["config", "show", "my.cfg", "--model", "m.onnx", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert set(shown) == {"config", "model", "settings", "layers", "refused", "tensors", "warnings"}
    assert shown["settings"]["batch_num"] == {"value": 2, "origin": "batch_num, line 1"}
    conv, fc = shown["layers"]
    assert conv["activation"] == {
        "algorithm": "ifmr",
        "bits": 8,
        "symmetric": False,
        "max_percentile": 0.999999,
        "min_percentile": 0.999999,
        "search_start": 0.7,
        "search_end": 1.3,
        "search_step": 0.02,
    }
    assert conv["weight"] == {"algorithm": "arq", "bits": 8, "per_channel": True}
    assert (conv["enabled"], conv["migration_strength"]) == (True, None)
    assert conv["origins"]["weight.per_channel"] == "common_config, line 3"
    assert (fc["enabled"], fc["reason"]) == (False, "skip_layers, line 6")
    assert shown["refused"][0]["name"] == "late"
    assert len(shown["warnings"]) == 1


def test_show_a_json_config(here, capsys) -> None:
    (here / "my.json").write_text('{"conv":{"quant_enable":true}}')
    assert main(["config", "show", "my.json", "--model", "m.onnx"]) == 0
    assert "no: the config does not list it" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("batch_num: 0", r"error: my\.cfg, line 1: batch_num is 0"),
        ('skip_layers: "fcc"', r'error: my\.cfg, line 1, "fcc": .* did you mean "fc"'),
        ('{"conv":{"quant_enable":1}}', r'error: my\.cfg, line 1, "conv": quant_enable is true or false'),
        ("common_config {", r"error: my\.cfg, line 1, column 1: .*never closed"),
        (None, r"error: my\.cfg cannot be read: No such file"),
    ],
)
@pytest.mark.parametrize(
    "command",
    [
        ["config", "show", "my.cfg", "--model", "m.onnx"],
        ["quantize", "m.onnx", "--data", "data", "-o", "out/m", "--config", "my.cfg"],
    ],
)
def test_faults(here, capsys, command, content, words) -> None:
    (here / "my.cfg").unlink()
    if content is not None:
        (here / "my.cfg").write_text(content)
    assert main(command) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert re.match(words, err)
    assert not (here / "out").exists()


QUANTIZE = ["quantize", "m.onnx", "--data", "data", "-o", "out/m", "--config", "my.cfg"]


def test_quantize(here, capsys) -> None:
    assert main([*QUANTIZE, "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["calibration_feeds"] == 2
    assert [layer["name"] for layer in shown["layers"]] == ["conv"]
    assert "batch_num is 2: the first 2 of 3 feeds were used to find the scales" in shown["notes"]
    assert any("joint_quant" in note for note in shown["notes"])


def test_too_few_feeds(here, capsys) -> None:
    (here / "my.cfg").write_text("batch_num: 4")
    assert main(QUANTIZE) == 2
    assert "batch_num is 4, but the calibration data holds 3 feeds" in capsys.readouterr().err


@pytest.mark.parametrize(
    "flags",
    [["--act", "mse"], ["--weights", "arq"], ["--skip", "fc"], ["--symmetric"], ["--gemm-per-channel"], ["--dmq"]],
)
def test_flags_that_a_config_decides(here, capsys, flags) -> None:
    assert main([*QUANTIZE, *flags]) == 2
    assert f"--config and {flags[0]} exclude each other" in capsys.readouterr().err


def test_a_config_is_never_overwritten(here, capsys) -> None:
    (here / "m_record.txt").write_text(CFG)
    assert main(["quantize", "m.onnx", "--data", "data", "-o", "m", "--config", "m_record.txt"]) == 2
    assert (here / "m_record.txt").read_text() == CFG


def test_a_prune_config_that_cannot_be_read_is_shown_as_one(here, capsys) -> None:
    (here / "prune.cfg").write_text(
        "prune_config { filter_pruner { balanced_l2_norm_filter_prune { prune_ratio: a: 1 } } }"
    )
    for command in (["config", "show", "prune.cfg", "--model", "m.onnx"], ["prune", "m.onnx", "--config", "prune.cfg"]):
        assert main([*command, *(["-o", "out/m"] if command[0] == "prune" else [])]) == 2
        assert "prune.cfg, line 1, column 78: expected the name of a field, found ':'" in capsys.readouterr().err
