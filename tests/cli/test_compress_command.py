"""`compress`, and `apply` of a record of everything, as users run them."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import pytest

from amct_onnx.cli import main
from amct_onnx.record import load_record
from tests.models import initializers, normal, parse

NET = parse(
    "[first] a = Conv(x, w1) [relu] b = Relu(a) [second] c = Conv(b, w2) [last] y = Conv(c, w3)",
    "float[n,4,8,8] x",
    "float[n,4,8,8] y",
    {"w1": normal(16, 4, 1, 1), "w2": normal(16, 16, 1, 1), "w3": normal(4, 16, 1, 1)},
)
CFG = """batch_num: 4
prune_config { filter_pruner { balanced_l2_norm_filter_prune { prune_ratio: 0.5 ascend_optimized: False } } }
retrain_weight_quant_config { arq_retrain { channel_wise: true } }
override_layer_configs { layer_name: "second" prune_config { n_out_of_m_pruner { l1_selective_prune {} } } }
"""
COMMAND = ["compress", "m.onnx", "--config", "my.cfg", "--data", ".", "-o", "out/m"]


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A working folder with a model, a config and data."""
    monkeypatch.chdir(tmp_path)
    onnx.save(NET, "m.onnx")
    Path("my.cfg").write_text(CFG)
    for index in range(4):
        np.savez(f"feed{index}.npz", x=normal(4, 4, 8, 8, seed=index))
    return tmp_path


def test_everything_is_done_and_said(here, capsys) -> None:
    assert main(COMMAND) == 0
    said = capsys.readouterr().out
    for words in (
        "pruned 1 layer in 1 group\n",
        "thinned out 1 layer: 64 of their 128 weights are zero",
        # Without half of the first layer's channels 32, 128 and 64 weights at each place.
        "zeros save 28.6% of the multiply-adds of the model",
        "quantized 3 layers (3 Conv)",
        "tried fake_quant on the first 4 feeds",
        "m_modified_model.onnx",
    ):
        assert words in said
    assert sorted(path.name for path in Path("out").iterdir()) == [
        "m_deploy_model.onnx",
        "m_fake_quant_model.onnx",
        "m_modified_model.onnx",
        "m_qdq_model.onnx",
        "m_quant.json",
        "m_record.txt",
        "m_tensors.txt",
    ]


def test_the_config_of_a_search_is_sent_to_prune(here, capsys) -> None:
    Path("my.cfg").write_text("compress_ratio: 1.5")
    assert main(COMMAND) == 2
    assert "my.cfg is the config of a search for prune ratios; `amct_onnx prune` takes it as --auto-config" in (
        capsys.readouterr().err
    )


def test_json(here, capsys) -> None:
    assert main([*COMMAND, "--json", "--format", "qdq"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["pruned"]["groups"][0]["removed"] == 8
    assert shown["thinned"]["layers"][0]["zeros"] == 64
    assert set(shown["files"]) == {"qdq", "modified", "record", "tensors", "quant_json"}


def test_the_record_is_applied_to_the_modified_model(here, capsys) -> None:
    assert main([*COMMAND, "--quiet"]) == 0
    assert main(["apply", "out/m_modified_model.onnx", "--record", "out/m_record.txt", "-o", "again/m"]) == 0
    for name in ("m_deploy_model.onnx", "m_fake_quant_model.onnx", "m_qdq_model.onnx"):
        assert Path("again", name).read_bytes() == Path("out", name).read_bytes()
    capsys.readouterr()
    assert main(["apply", "m.onnx", "--record", "out/m_record.txt", "-o", "no/m"]) == 2
    assert "weights were modified" in capsys.readouterr().err
    assert not Path("no").exists()
    assert main(["apply", "m.onnx", "--record", "out/m_record.txt", "-o", "bare/m", "--structure-only"]) == 0
    bare = initializers(onnx.load("bare/m_pruned_model.onnx"))
    modified = initializers(onnx.load("out/m_modified_model.onnx"))
    assert bare["w1"].shape == modified["w1"].shape == (8, 4, 1, 1)
    np.testing.assert_array_equal(bare["w2"] == 0, modified["w2"] == 0)


def test_the_structure_alone_has_no_scales(here, capsys) -> None:
    """Scales are those of weights that were fitted, which the source does not have."""
    assert main([*COMMAND, "--quiet"]) == 0
    command = ["apply", "m.onnx", "--record", "out/m_record.txt", "--structure-only"]
    assert main([*command, "-o", "bare/m"]) == 0
    out = capsys.readouterr().out
    assert "note: scales of 3 layers are left out: they are those of the modified model's weights" in out
    whole, bare = (load_record(path).record for path in ("out/m_record.txt", "bare/m_record.txt"))
    assert (bare.layers, bare.prune) == ({}, whole.prune)
    # It is the record of this very model: applied as it is, it gives the same bytes.
    assert main(["apply", "m.onnx", "--record", "bare/m_record.txt", "-o", "again/m"]) == 0
    assert "scales" not in capsys.readouterr().out
    for name in ("m_pruned_model.onnx", "m_record.txt"):
        assert Path("again", name).read_bytes() == Path("bare", name).read_bytes()
    before = Path("out/m_record.txt").read_bytes()
    assert main([*command, "-o", "out/m"]) == 2
    assert "out/m_record.txt: this output would overwrite an input" in capsys.readouterr().err
    assert Path("out/m_record.txt").read_bytes() == before


def test_a_trial_says_where_it_flatters_and_a_model_that_was_not_fitted_what_it_needs(here, capsys) -> None:
    flattered, untrained = "fitted to the very feeds that the model was tried on", "no weight was fitted"
    for flags, said, unsaid in (([], flattered, untrained), (["--no-recover"], untrained, flattered)):
        assert main([*COMMAND, *flags]) == 0
        out = capsys.readouterr().out
        assert said in out
        assert unsaid not in out


def test_without_recovery_the_record_is_applied_to_the_source(here, capsys) -> None:
    assert main([*COMMAND, "--quiet", "--no-recover"]) == 0
    assert main(["apply", "m.onnx", "--record", "out/m_record.txt", "-o", "again/m"]) == 0
    assert (
        "what the record takes out went first, and the rest was quantized: again/m_modified" in capsys.readouterr().out
    )
    for name in ("m_qdq_model.onnx", "m_modified_model.onnx"):
        assert Path("again", name).read_bytes() == Path("out", name).read_bytes()
    assert main(["record", "check", "out/m_record.txt", "--model", "m.onnx"]) == 0


def test_a_record_of_everything_is_checked_against_the_modified_model(here, capsys) -> None:
    assert main([*COMMAND, "--quiet"]) == 0
    assert main(["record", "check", "out/m_record.txt", "--model", "out/m_modified_model.onnx"]) == 0
    assert main(["record", "check", "out/m_record.txt", "--model", "m.onnx"]) == 1
    assert "weights were modified" in capsys.readouterr().out


def test_flags_and_files_that_do_not_fit(here, capsys) -> None:
    before = sorted(here.rglob("*"))
    for change, words in (
        (["--check-snr", "20", "--no-trial"], "nothing is tried with --no-trial"),
        (["--config", "none.cfg"], "none.cfg"),
        (["--format", "int3"], "--format: 'int3' is unknown"),
        (["--data", "nowhere"], "nowhere"),
    ):
        assert main([*COMMAND, *change]) == 2
        assert words in capsys.readouterr().err
        assert sorted(here.rglob("*")) == before


@pytest.mark.parametrize("flags", [[], ["--no-recover"]])
def test_without_quantization_the_record_is_applied_to_the_modified_model(here, capsys, flags) -> None:
    Path("my.cfg").write_text(CFG.replace("retrain_weight_quant_config { arq_retrain { channel_wise: true } }", ""))
    assert main([*COMMAND, *flags, "--quiet"]) == 0
    applied = ["out/m_modified_model.onnx", "--record", "out/m_record.txt", "-o", "again/m"]
    assert main(["apply", *applied]) == 0
    out = capsys.readouterr().out
    assert "this is the modified model that the record was made with" in out
    assert ("no weight was fitted" in out) is bool(flags)
    modified, again = Path("out/m_modified_model.onnx"), Path("again/m_pruned_model.onnx")
    assert again.read_bytes() == modified.read_bytes()
    assert Path("again/m_record.txt").read_bytes() == Path("out/m_record.txt").read_bytes()
    assert main(["record", "check", "out/m_record.txt", "--model", str(modified)]) == 0


PRUNING = CFG.replace("retrain_weight_quant_config { arq_retrain { channel_wise: true } }", "")


def test_a_config_without_quantization(here, capsys) -> None:
    Path("my.cfg").write_text(PRUNING)
    assert main([*COMMAND, "--check-snr", "-100"]) == 0
    out = capsys.readouterr().out
    for words in (
        "the config quantizes no layer",
        "tried modified on the first 4 feeds: output SNR",
        "note: layers were",
    ):
        assert words in out
    assert sorted(path.name for path in Path("out").iterdir()) == ["m_modified_model.onnx", "m_record.txt"]
    assert main([*COMMAND, "--check-snr", "300"]) == 1
    assert "check failed: modified: output SNR" in capsys.readouterr().out


def test_notes_of_a_config_without_quantization_are_shown(here, capsys) -> None:
    """Its warnings, and what of it could not be done."""
    own = 'override_layer_configs { layer_name: "last" prune_config { filter_pruner { balanced_l2_norm_filter_prune'
    Path("my.cfg").write_text(f"{PRUNING}{own} {{ prune_ratio: 0.5 }} }} }} }}")
    assert main(COMMAND) == 0
    text = capsys.readouterr().out
    assert main([*COMMAND, "--json"]) == 0
    notes = json.loads(capsys.readouterr().out)["notes"]
    assert any("its prune_config has no effect" in note for note in notes)
    assert all(f"note: {note}\n" in text for note in notes)


def test_a_part_that_does_nothing_is_told_as_text_and_in_json(here, capsys) -> None:
    Path("my.cfg").write_text(CFG.replace("ascend_optimized: False", "").replace("0.5", "0.1"))
    assert main(COMMAND) == 0
    assert "note: my.cfg: no channel of the model can be pruned; 'first': a multiple of 16" in capsys.readouterr().out
    assert main([*COMMAND, "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["pruned"] is None
    assert any("no channel of the model can be pruned" in note for note in shown["notes"])
