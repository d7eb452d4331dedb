"""`sparsify`, and `apply` and `record` of masks, as users run them."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import pytest

from amct_onnx.cli import main
from tests.models import initializers, normal, parse

NET = parse(
    "[first] a = Conv(x, w1) [relu] b = Relu(a) [deep] c = Conv<group = 8>(b, w2) [last] y = Conv(c, w3)",
    "float[n,4,8,8] x",
    "float[n,4,8,8] y",
    {"w1": normal(8, 4, 1, 1), "w2": normal(8, 1, 1, 1), "w3": normal(4, 8, 1, 1)},
)
OTHER = parse(
    "[first] a = Conv(x, w1) [relu] b = Relu(a) [deep] c = Conv<group = 8>(b, w2) [last] y = Conv(c, w3)",
    "float[n,4,8,8] x",
    "float[n,4,8,8] y",
    {"w1": normal(8, 4, 1, 1, seed=9), "w2": normal(8, 1, 1, 1), "w3": normal(4, 8, 1, 1)},
)


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A working folder with a model, another of the same structure, and data."""
    monkeypatch.chdir(tmp_path)
    onnx.save(NET, "m.onnx")
    onnx.save(OTHER, "other.onnx")
    for index in range(4):
        np.savez(f"feed{index}.npz", x=normal(4, 4, 8, 8, seed=index))
    return tmp_path


def zeros(path: str) -> dict[str, float]:
    return {name: float((values == 0).mean()) for name, values in initializers(onnx.load(path)).items()}


def test_half_of_the_weights_become_zero(here, capsys) -> None:
    assert main(["sparsify", "m.onnx", "-o", "out/m"]) == 0
    said = capsys.readouterr().out
    assert "thinned out 2 layers: 32 of their 64 weights are zero" in said
    assert "left as they are (1 layer):" in said
    assert "deep: of every four weights 2 stay, and it has 1 input channel per group" in said
    assert "note: no weight was fitted to make up for what went" in said
    assert "not tried beside the float model: that takes --data" in said
    assert zeros("out/m_sparse_model.onnx") == {"w1": 0.5, "w2": 0.0, "w3": 0.5}


def test_with_data_the_others_make_up_for_them(here, capsys) -> None:
    assert main(["sparsify", "m.onnx", "-o", "m", "--data", ".", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert [layer["is_compensated"] for layer in report["layers"]] == [True, True]
    # No kernel here leaves zeros out, so a speed would be noise.
    assert [(trial["form"], trial["speed_up"]) for trial in report["trials"]] == [("sparse", None)]
    assert "fitted to the very feeds" in report["notes"][-1]
    assert set(report["files"]) == {"sparse", "record"}
    assert main(["sparsify", "m.onnx", "-o", "m", "--data", ".", "--check-snr", "100"]) == 1


def test_a_saving_leaves_the_dearest_layers(here, capsys) -> None:
    flags = ["--data", ".", "--saving", "0.2", "--save-config", "my.cfg"]
    assert main(["sparsify", "m.onnx", "-o", "m", *flags]) == 0
    said = capsys.readouterr().out
    assert "thinned out 1 layer: 16 of their 32 weights are zero" in said
    # 32, 8 and 32 weights at each of 64 places, 16 of them zero.
    assert "zeros save 22.2% of the multiply-adds of the model" in said
    assert "other layers give up more for less loss" in said
    assert "my.cfg" in said
    (chosen,) = [name for name, share in zeros("m_sparse_model.onnx").items() if share]
    assert main(["sparsify", "m.onnx", "-o", "n", "--data", ".", "--config", "my.cfg", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["saving"] == 16 / 72
    found = zeros("n_sparse_model.onnx")
    assert {name for name, share in found.items() if share} == {chosen}
    assert found[chosen] == 0.5
    assert Path("n_record.txt").read_text() == Path("m_record.txt").read_text()
    Path("all.cfg").write_text(Path("my.cfg").read_text() + "retrain_data_quant_config { ulq_quantize {} }")
    assert main(["compress", "m.onnx", "-o", "c", "--data", ".", "--config", "all.cfg", "--format", "qdq"]) == 0
    assert zeros("c_modified_model.onnx") == zeros("m_sparse_model.onnx")


def test_a_saved_config_takes_the_place_of_no_other_file(here, capsys) -> None:
    for name in ("m.onnx", "a_record.txt"):
        assert main(["sparsify", "m.onnx", "-o", "a", "--save-config", name]) == 2
        assert f"{name}: " in capsys.readouterr().err
        assert not list(here.glob("a_*"))


def test_a_record_is_applied(here, capsys) -> None:
    assert main(["sparsify", "m.onnx", "-o", "a", "--quiet"]) == 0
    assert main(["apply", "m.onnx", "--record", "a_record.txt", "-o", "b"]) == 0
    assert Path("b_sparse_model.onnx").read_bytes() == Path("a_sparse_model.onnx").read_bytes()
    assert main(["apply", "other.onnx", "--record", "a_record.txt", "-o", "c"]) == 2
    assert "made for another model" in capsys.readouterr().err
    assert main(["apply", "other.onnx", "--record", "a_record.txt", "-o", "c", "--structure-only"]) == 0
    assert zeros("c_sparse_model.onnx") == {"w1": 0.5, "w2": 0.0, "w3": 0.5}
    assert main(["record", "check", "a_record.txt", "--model", "m.onnx"]) == 0


def test_a_compensated_record_is_applied_to_the_sparse_model(here, capsys) -> None:
    assert main(["sparsify", "m.onnx", "-o", "a", "--data", ".", "--quiet"]) == 0
    assert main(["apply", "m.onnx", "--record", "a_record.txt", "-o", "b"]) == 2
    assert "weights were modified" in capsys.readouterr().err
    assert main(["apply", "a_sparse_model.onnx", "--record", "a_record.txt", "-o", "b"]) == 0
    assert Path("b_sparse_model.onnx").read_bytes() == Path("a_sparse_model.onnx").read_bytes()


def test_checking_a_compensated_record_says_what_it_gives(here, capsys) -> None:
    assert main(["sparsify", "m.onnx", "-o", "a", "--data", ".", "--quiet"]) == 0
    for model, note in (("m.onnx", "its weights were fitted"), ("a_sparse_model.onnx", "")):
        capsys.readouterr()
        assert main(["record", "check", "a_record.txt", "--model", model, "--json"]) == 0
        out, err = capsys.readouterr()
        assert json.loads(out)["note"].startswith(note)
        assert ("--structure-only" in err) is bool(note)
        assert "a_record.txt: 2 prune records; no fault found" in err


def test_files_in_each_others_place(here, capsys) -> None:
    assert main(["sparsify", "m.onnx", "-o", "a", "--quiet"]) == 0
    for command, words in (
        (["record", "check", "m.onnx", "--model", "a_record.txt"], "m.onnx is called like a model, but a record"),
        (["apply", "a_record.txt", "--record", "m.onnx", "-o", "b"], "m.onnx is called like a model, but a record"),
        (["apply", "a_record.txt", "--record", "a_record.txt", "-o", "b"], "a_record.txt: this is not an ONNX model"),
        (["sparsify", "a_record.txt", "-o", "b"], "it is text; give the .onnx file"),
        (["sparsify", "m.onnx", "--config", "m.onnx", "-o", "b"], "m.onnx is called like a model, but a config"),
    ):
        assert main(command) in (1, 2)
        out, err = capsys.readouterr()
        assert words in out + err


def test_a_prefix_used_twice_takes_the_record_from_the_first_model(here, capsys) -> None:
    for command, words in (
        (["sparsify", "m.onnx"], ""),
        (["sparsify", "m.onnx"], "WARNING: replacing earlier outputs: a_sparse_model.onnx, a_record.txt\n"),
        (
            ["prune", "m.onnx", "--ratio", "0.5"],
            "a_record.txt was the record of a_sparse_model.onnx; give each command",
        ),
        (["quantize", "m.onnx", "--data", "."], "a_record.txt was the record of a_pruned_model.onnx, a_sparse_model"),
    ):
        capsys.readouterr()
        assert main([*command, "-o", "a"]) == 0
        err = capsys.readouterr().err
        assert words in err
        assert ("was the record of" in err) is ("was the record of" in words)


def test_flags_that_do_not_fit(here, capsys) -> None:
    Path("all.cfg").write_text('quant_skip_types: "Conv" prune_config { n_out_of_m_pruner { l1_selective_prune {} } }')
    for flags, words in (
        (["--selection", "compensated"], "--selection compensated chooses by --data; give --data, or choose l1"),
        (["--no-trial"], "--no-trial belongs to --data"),
        (
            ["--saving", "0.2"],
            "--saving finds from --data which layers are thinned out; give --data, or leave --saving",
        ),
        (["--data", ".", "--saving", "2"], "--saving is 2.0; give a share above 0 and below 1"),
        (["--data", ".", "--saving", "0.9"], "--saving is 0.9, but at most 0.444 of the multiply-adds can go"),
        (["--config", "none.cfg", "--saving", "0.2"], "--config and --saving exclude each other"),
        (["--skip", "frist"], "--skip: 'frist' is not in the model; did you mean 'first'?"),
        (["--config", "none.cfg"], "none.cfg"),
        (["--config", "all.cfg"], "all.cfg, line 1: quant_skip_types is not taken, since nothing is quantized here"),
    ):
        assert main(["sparsify", "m.onnx", "-o", "out", *flags]) == 2
        assert words in capsys.readouterr().err
        assert not list(here.glob("out*"))
    assert main(["sparsify", "m.onnx", "-o", "a", "--quiet"]) == 0
    assert main(["apply", "m.onnx", "--record", "a_record.txt", "-o", "b", "--format", "qdq"]) == 2
    assert "does not quantize" in capsys.readouterr().err
    assert main(["apply", "m.onnx", "--record", "a_record.txt", "-o", "b", "--input-shape", "x:1,3,8,8"]) == 2
    assert "--input-shape concerns channels" in capsys.readouterr().err


def test_the_selective_example_with_real_names(here, capsys) -> None:
    Path("selective_prune.cfg").write_text(
        """prune_config{
        n_out_of_m_pruner { l1_selective_prune { n_out_of_m_type: M4N2 update_freq: 0 } } }
        regular_prune_skip_layers: "deep"
        override_layer_configs: { layer_name: "last" prune_config : { n_out_of_m_pruner: {
        l1_selective_prune: { n_out_of_m_type: M4N2 update_freq: 1 } } } }"""
    )
    assert main(["sparsify", "m.onnx", "-o", "m", "--config", "selective_prune.cfg"]) == 0
    assert zeros("m_sparse_model.onnx") == {"w1": 0.5, "w2": 0.0, "w3": 0.5}
    assert "regular_prune_skip_layers" in capsys.readouterr().out
