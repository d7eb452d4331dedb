"""`prune`, `apply` of a prune record, and `config show` of a retrain config, as a hostile user runs them."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path

import numpy as np
import onnx
import pytest

from amct_onnx.cli import main
from tests.models import normal, parse, run

NET = parse(
    "[first] a = Conv(x, w1) [relu] b = Relu(a) [second] c = Conv(b, w2) [last] y = Conv(c, w3)",
    "float[n,3,8,8] x",
    "float[n,4,8,8] y",
    {"w1": normal(8, 3, 1, 1), "w2": normal(16, 8, 1, 1), "w3": normal(4, 16, 1, 1)},
)
OTHER = parse(
    "[first] a = Conv(x, w1) [relu] b = Relu(a) [second] c = Conv(b, w2) [last] y = Conv(c, w3)",
    "float[n,3,8,8] x",
    "float[n,4,8,8] y",
    {"w1": normal(8, 3, 1, 1, seed=9), "w2": normal(16, 8, 1, 1), "w3": normal(4, 16, 1, 1)},
)
CFG = """# half, but for one layer
prune_config { filter_pruner { balanced_l2_norm_filter_prune { prune_ratio: 0.5 ascend_optimized: False } } }
regular_prune_skip_layers: "second"
"""


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A working folder with a model, another of the same structure, a config, and a prune record."""
    monkeypatch.chdir(tmp_path)
    onnx.save(NET, "m.onnx")
    onnx.save(OTHER, "other.onnx")
    Path("my.cfg").write_text(CFG)
    assert main(["prune", "m.onnx", "--ratio", "0.5", "-o", "done", "--quiet"]) == 0
    return tmp_path


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def sizes(path: str) -> dict[str, int]:
    return {tensor.name: tensor.dims[0] for tensor in onnx.load(path).graph.initializer}


def fails(capsys, folder: Path, command: list[str], words: str) -> None:
    """The command ends with 2 and one message, and leaves all files as they were."""
    before = contents(folder)
    capsys.readouterr()
    assert main(command) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert re.search(words, err), err
    assert "Traceback" not in err
    assert len([line for line in err.splitlines() if "error: " in line]) == 1
    assert contents(folder) == before


def test_a_config_decides(here, capsys) -> None:
    assert main(["prune", "m.onnx", "--config", "my.cfg", "-o", "out/m"]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    assert "second: regular_prune_skip_layers, line 3, skips 'second'" in out
    assert "note: no weight was fitted to make up for what went" in out
    assert sizes("out/m_pruned_model.onnx") == {"w1": 4, "w2": 16, "w3": 4}
    assert run(here / "out/m_pruned_model.onnx", {"x": normal(2, 3, 8, 8)})[0].shape == (2, 4, 8, 8)


def test_the_record_of_a_config_replays(here) -> None:
    assert main(["prune", "m.onnx", "--config", "my.cfg", "-o", "out/m"]) == 0
    assert main(["apply", "m.onnx", "--record", "out/m_record.txt", "-o", "again/m"]) == 0
    pruned = [(here / folder / "m_pruned_model.onnx").read_bytes() for folder in ("out", "again")]
    assert pruned[0] == pruned[1]


def test_same_inputs_same_bytes(here) -> None:
    for folder in ("one", "two"):
        assert main(["prune", "m.onnx", "--config", "my.cfg", "-o", f"{folder}/m"]) == 0
    assert contents(here / "one") == contents(here / "two")


def test_json(here, capsys) -> None:
    own = 'override_layer_configs { layer_name: "last" prune_config { n_out_of_m_pruner { l1_selective_prune {} } } }'
    (here / "my.cfg").write_text(CFG + own)
    assert main(["prune", "m.onnx", "--config", "my.cfg", "-o", "out/m", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert set(shown) == {"groups", "before", "after", "notes", "fitted", "losses", "trials", "sizes", "files"}
    assert shown["files"] == {"pruned": "out/m_pruned_model.onnx", "record": "out/m_record.txt"}
    assert {group["layers"][0]: (group["channels"], group["removed"]) for group in shown["groups"]} == {
        "first": (8, 4),
        "second": (16, 0),
        "last": (4, 0),
    }
    parameters = [sum(np.prod(shape) for shape in ((n, 3), (16, n), (4, 16))) for n in (8, 4)]
    assert [shown[when]["parameters"] for when in ("before", "after")] == parameters
    assert shown["notes"] == ["my.cfg: 'last' is not thinned out 4:2 here; `amct_onnx sparsify` does that"]


class TestConfigShow:
    COMMAND = ("config", "show", "my.cfg", "--model", "m.onnx")

    def test_rows(self, here, capsys) -> None:
        assert main([*self.COMMAND]) == 0
        out, err = capsys.readouterr()
        assert err == ""
        for words in (
            r"first +Conv +0\.5 +no: no block quantizes it +prune: prune_config, line 2",
            r"second +Conv +no: regular_prune_skip_layers, line 3",
            r"last +Conv +no: it is the model's output 'y'",
            "1 of 3 layers are to be pruned",
        ):
            assert re.search(words, out), words
        assert "batch_num" not in out

    def test_everything_else(self, here, capsys) -> None:
        (here / "my.cfg").write_text("""
            prune_config { n_out_of_m_pruner { l1_selective_prune { update_freq: 3 } } }
            override_layer_configs {
              layer_name: "first"
              prune_config { filter_pruner { balanced_l2_norm_filter_prune { prune_ratio: 0.25 } } }
              retrain_data_quant_config { ulq_quantize { clip_max_min { clip_max: 6.0 clip_min: -5.0 } } }
            }
            retrain_weight_quant_config { ulq_retrain {} }
            quant_skip_layers: "last"
        """)
        assert main([*self.COMMAND]) == 0
        out = capsys.readouterr().out
        for words in (
            r"first +Conv +0\.25, but no channel goes: a multiple of 16 stays for Ascend devices, and of 8 channels "
            r"that is all +data ulq_quantize, 8 bits, from -5 to 6; weights "
            r"ulq_retrain, 8 bits, per channel +prune: override_layer_configs \"first\", line 5; data: ",
            r"second +Conv +4:2 sparsity \(M4N2, chosen once: update_freq 3 means something in training alone\) ",
            r"last .* no: quant_skip_layers, line 9",
            "0 of 3 layers are to be pruned, 2 thinned out 4:2, 2 quantized",
        ):
            assert re.search(words, out), words
        assert out.startswith("batch_num: 1\nforce_fp16_quant: false\n")
        assert "warning" not in out

    @pytest.mark.parametrize(
        ("quantize", "words"),
        [
            ("", "8 bits;"),
            ("fixed_min: false", "8 bits;"),
            ("fixed_min: true", "8 bits, from 0;"),
            ("clip_max_min { clip_max: 6.0 clip_min: -5.5 }", "8 bits, from -5.5 to 6;"),
            ("clip_max_min { clip_max: 6.0 clip_min: -5.5 } fixed_min: true", "8 bits, from 0 to 6;"),
        ],
    )
    def test_the_range_is_the_one_that_counts(self, here, capsys, quantize: str, words: str) -> None:
        (here / "my.cfg").write_text(f"retrain_data_quant_config {{ ulq_quantize {{ {quantize} }} }}")
        assert main([*self.COMMAND]) == 0
        assert f"data ulq_quantize, {words} weights" in capsys.readouterr().out

    def test_json(self, here, capsys) -> None:
        assert main([*self.COMMAND, "--json"]) == 0
        shown = json.loads(capsys.readouterr().out)
        assert set(shown) == {"config", "model", "settings", "layers", "warnings"}
        first, second, _ = shown["layers"]
        assert (first["pruning"], first["why_whole"]) == ({"ratio": 0.5, "ascend_optimized": False}, "")
        assert first["origins"] == {"prune": "prune_config, line 2"}
        assert (second["pruning"], second["why_whole"]) == (None, "regular_prune_skip_layers, line 3")

    def test_free_sizes_can_be_given(self, here, capsys) -> None:
        assert main([*self.COMMAND, "--input-shape", "x:5,3,8,8"]) == 0
        assert "1 of 3 layers are to be pruned" in capsys.readouterr().out
        fails(capsys, here, [*self.COMMAND, "--input-shape", "x:1,3"], r"\[1, 3\] does not fit input 'x'")

    def test_faults(self, here, capsys) -> None:
        (here / "my.cfg").write_text(CFG.replace("second", "secnd"))
        fails(capsys, here, [*self.COMMAND], r'^error: my\.cfg, line 3, "secnd": .*did you mean "second"\?')


PRUNE = ["prune", "m.onnx", "-o", "out/m"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], r"give one of --ratio.*, --saving .*, --config and --auto-config"),
        (["--ratio", "0.5", "--saving", "0.2"], "--ratio and --saving exclude each other"),
        (["--saving", "0.2"], "--saving finds from --data .*give --data, or --ratio"),
        (["--ratio", "0.5", "--importance", "energy"], "--importance energy ranks by --data; give --data"),
        *(
            (["--ratio", "0.5", *flags], f"{flags[0]} belongs to --data, which is not given")
            for flags in (["--no-recover"], ["--no-trial"], ["--check-snr", "9"], ["--mean", "0.5"], ["--batch", "2"])
        ),
        *((["--ratio", value], rf"--ratio is {value}.*above 0 and below 1") for value in ("0.0", "1.0", "1.5", "nan")),
        (["--ratio=-0.5"], r"--ratio is -0\.5"),
        (["--ratio", "half"], r"--ratio: invalid float value"),
        (["--ratio", "0.5", "--skip", "secnd"], r"--skip: 'secnd' .*did you mean 'second'"),
        (["--ratio", "0.5", "--input-shape", "x"], r"input shape 'x' is not of the form"),
        (["--ratio", "0.5", "--input-shape", "z:1,3,8,8"], "'z' is no input of the model"),
        (["--ratio", "0.5", "--input-shape", "x:1,3"], r"\[1, 3\] does not fit input 'x'"),
        (["--config", "my.cfg", "--ratio", "0.5"], "--config and --ratio exclude each other"),
        (["--config", "my.cfg", "--saving", "0.5"], "--config and --saving exclude each other"),
        (["--config", "my.cfg", "--ascend-optimized"], "--config and --ascend-optimized exclude each other"),
        (["--config", "my.cfg", "--skip", "second"], "--config and --skip exclude each other"),
        (["--config", "no.cfg"], r"no\.cfg cannot be read: No such file"),
        (["--config", "m.onnx"], r"m\.onnx is called like a model, but a config"),
        (["--ratio", "0.001"], "no channel of the model can be pruned; .*0.001 of 8 channels rounds to none"),
        (["--ratio", "0.5", "--input-shape", "x:1,3,0,8"], r"\[1, 3, 0, 8\] of input 'x' holds nothing"),
        (["--ratio", "0.5", "--skip", "relu"], "--skip: 'relu' is a Relu, which has no weight; name layers"),
        (["--ratio", "0.5", "--save-config", "m.onnx"], "m.onnx: this output would overwrite an input"),
    ],
)
def test_bad_arguments(here, capsys, arguments: list[str], words: str) -> None:
    fails(capsys, here, [*PRUNE, *arguments], words)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (CFG.replace("0.5", "5"), r"my\.cfg, line 2: prune_ratio is 5, but it lies above 0 and below 1"),
        ("", r"my\.cfg holds no prune_config"),
        ("common_config { ifmr_quantize {} }", r"my\.cfg, line 1: unknown field common_config"),
        ("prune_config {", r"my\.cfg, line 1, column 1: .*never closed"),
        ('{"version": 1}', r"my\.cfg holds no prune_config"),
        ('{"first": {"quant_enable": true}}', r"my\.cfg is a calibration config .*`amct_onnx quantize` takes it"),
        ("prune_config { n_out_of_m_pruner { l1_selective_prune {} } }", "asks for 4:2 sparsity alone"),
        ("compress_ratio: 1.3", r"my\.cfg is the config of a search .*--auto-config"),
        (
            CFG + "retrain_weight_quant_config { arq_retrain {} }",
            r"my\.cfg, line \d: retrain_weight_quant_config is not taken, since nothing is quantized here; .*compress`",
        ),
        (CFG + 'regular_prune_skip_layers: ""', r"my\.cfg, line \d+: regular_prune_skip_layers holds an empty name"),
    ],
)
def test_bad_configs(here, capsys, text: str, words: str) -> None:
    (here / "my.cfg").write_text(text)
    fails(capsys, here, [*PRUNE, "--config", "my.cfg"], words)


def test_quantize_says_where_a_retrain_config_belongs(here, capsys) -> None:
    np.savez("feed.npz", x=normal(1, 3, 8, 8))
    command = ["quantize", "m.onnx", "--data", "feed.npz", "-o", "out/m", "--config", "my.cfg"]
    fails(capsys, here, command, r"my\.cfg is a config of pruning.*amct_onnx compress")


@pytest.mark.parametrize("shape", ["z:1,3,8,8", "x:1,3", "x:1,4,8,8"])
def test_the_groups_are_shown_for_shapes_that_inputs_can_have(here, capsys, shape: str) -> None:
    fails(capsys, here, ["inspect", "m.onnx", "--prune", "--input-shape", shape], "input shape: ")


@pytest.mark.parametrize("content", [None, b"", b"no model at all"])
def test_no_model(here, capsys, content: bytes | None) -> None:
    if content is not None:
        (here / "x.onnx").write_bytes(content)
    words = "No such file" if content is None else "no ONNX graph|not an ONNX model"
    fails(capsys, here, ["prune", "x.onnx", "--ratio", "0.5", "-o", "out/m"], rf"x\.onnx.*({words})")


@pytest.mark.parametrize(
    ("model", "config", "prefix", "taken"),
    [
        ("m_pruned_model.onnx", None, "m", "m_pruned_model.onnx"),
        ("m_record.txt", None, "m", "m_record.txt"),
        ("m.onnx", "m_record.txt", "m", "m_record.txt"),
        ("m.onnx", None, "out/", "no file name"),
        ("m.onnx", None, "m.onnx/m", r"m\.onnx: cannot write"),
    ],
)
def test_inputs_are_never_overwritten(here, capsys, model: str, config: str | None, prefix: str, taken: str) -> None:
    onnx.save(NET, model)
    if config:
        (here / config).write_text(CFG)
    how = ["--config", config] if config else ["--ratio", "0.5"]
    fails(capsys, here, ["prune", model, *how, "-o", prefix], taken)


def test_external_weights_are_never_overwritten(here, capsys) -> None:
    # Saving with external weights changes the model that is saved.
    onnx.save(deepcopy(NET), "big.onnx", save_as_external_data=True, location="m_record.txt", size_threshold=0)
    fails(capsys, here, ["prune", "big.onnx", "--ratio", "0.5", "-o", "m"], "m_record.txt: this output would overwrite")


class TestRecords:
    """`apply` of a prune record."""

    def edit(self, old: str, new: str) -> None:
        path = Path("done_record.txt")
        text = path.read_text()
        assert old in text
        path.write_text(text.replace(old, new))

    def refuses(self, capsys, folder: Path, words: str, model: str = "m.onnx") -> None:
        fails(capsys, folder, ["apply", model, "--record", "done_record.txt", "-o", "out/m"], words)

    def test_of_another_model(self, here, capsys) -> None:
        self.refuses(capsys, here, r"done_record\.txt.*other", "other.onnx")

    @pytest.mark.parametrize("share", [0.3, 0.6, 0.95])
    def test_truncated(self, here, capsys, share: float) -> None:
        path = here / "done_record.txt"
        text = path.read_text()
        path.write_text(text[: int(len(text) * share)])
        self.refuses(capsys, here, r"done_record\.txt, line \d+, column \d+: .*")

    def test_a_layer_that_is_not_there(self, here, capsys) -> None:
        self.edit('name: "first"', 'name: "frist"')
        self.refuses(capsys, here, r"done_record\.txt: .*'frist' is no layer of the model")

    def test_a_consumer_that_is_not_there(self, here, capsys) -> None:
        self.edit('name: "last"', 'name: "lost"')
        self.refuses(capsys, here, r"done_record\.txt: .*'lost'")

    def test_a_channel_beyond_the_count(self, here, capsys) -> None:
        text = Path("done_record.txt").read_text()
        index = re.search(r"ints: (\d+)", text)
        assert index
        self.edit(index[0], "ints: 99")
        self.refuses(capsys, here, r"99")

    def test_a_prefix_that_names_the_model(self, here, capsys) -> None:
        onnx.save(NET, "m_pruned_model.onnx")
        command = ["apply", "m_pruned_model.onnx", "--record", "done_record.txt", "-o", "m"]
        fails(capsys, here, command, "would overwrite an input")


def test_record_check_knows_prune_records(here, capsys) -> None:
    # The normalization is folded away where quantization looks, and named by the record all the same.
    one = np.ones(8, np.float32)
    normed = parse(
        "[first] a = Conv(x, w1) [norm] b = BatchNormalization(a, g, g, g, g) [last] y = Conv(b, w2)",
        "float[n,3,8,8] x",
        "float[n,4,8,8] y",
        {"w1": normal(8, 3, 1, 1), "g": one, "w2": normal(4, 8, 1, 1)},
    )
    onnx.save(normed, "normed.onnx")
    assert main(["prune", "normed.onnx", "--ratio", "0.5", "-o", "p", "--quiet"]) == 0
    assert main(["record", "check", "p_record.txt", "--model", "normed.onnx"]) == 0
    assert "no fault found" in capsys.readouterr().out
    assert main(["record", "check", "done_record.txt", "--model", "other.onnx"]) == 1
    assert "another model" in capsys.readouterr().out


def test_the_config_that_was_found_is_saved_with_the_rest_or_nothing_is(here, capsys) -> None:
    command = ["prune", "m.onnx", "--ratio", "0.5", "-o", "out/m", "--save-config"]
    fails(capsys, here, [*command, "/proc/found.cfg"], "/proc")
    assert main([*command, "found.cfg"]) == 0
    assert sorted(contents(here / "out")) == ["m_pruned_model.onnx", "m_record.txt"]
    assert "prune_ratio: 0.5" in Path("found.cfg").read_text()


AUTO = "# one and a half\ncompress_ratio: 1.5 ascend_optimized: false test_iteration: 8\n"


class TestAutoConfig:
    """`prune --auto-config`."""

    COMMAND = ("prune", "m.onnx", "--auto-config", "auto.cfg", "-o", "out/m")

    @pytest.fixture
    def there(self, here):
        Path("auto.cfg").write_text(AUTO)
        Path("feeds").mkdir()
        for index in range(8):
            np.savez(f"feeds/{index}.npz", x=normal(4, 3, 8, 8, seed=index))
        return here

    def test_what_was_found_is_pruned_fitted_and_saved(self, there, capsys) -> None:
        command = [*self.COMMAND, "--data", "feeds", "--save-config", "found.cfg", "--json"]
        assert main(command) == 0
        shown = json.loads(capsys.readouterr().out)
        assert shown["before"]["multiply_adds"] / shown["after"]["multiply_adds"] >= 1.5
        assert shown["fitted"]
        assert shown["files"]["config"] == "found.cfg"
        assert main(["prune", "m.onnx", "--config", "found.cfg", "-o", "again"]) == 0
        assert sizes("again_pruned_model.onnx") == {
            name: size for name, size in sizes("out/m_pruned_model.onnx").items() if name.startswith("w")
        }

    @pytest.mark.parametrize(
        ("text", "arguments", "words"),
        [
            (AUTO, [], "--auto-config finds from --data how much of each layer goes; give --data"),
            *(
                (AUTO, ["--data", "feeds", *flags], f"--auto-config and {flags[0]} exclude each other")
                for flags in (
                    ("--ratio", "0.5"),
                    ("--saving", "0.5"),
                    ("--config", "my.cfg"),
                    ("--ascend-optimized",),
                    ("--skip", "second"),
                )
            ),
            (None, ["--data", "feeds"], r"auto\.cfg cannot be read: No such file"),
            ("\ncompress_ratio: 0.5", ["--data", "feeds"], r"auto\.cfg, line 2: compress_ratio is 0\.5"),
            (
                "\ncompress_ratio: 90 ascend_optimized: false",
                ["--data", "feeds"],
                r"auto\.cfg, line 2: compress_ratio is 90, but at most",
            ),
            (
                "compress_ratio: 1.1",
                ["--data", "feeds"],
                "'first': none of its 8 channels goes: a multiple of 16 stays, and at most 100% may",
            ),
            (
                AUTO,
                ["--data", "feeds", "--save-config", "auto.cfg"],
                r"auto\.cfg: this output would overwrite an input",
            ),
            (
                f"{AUTO} override_prune_cfg: 'my.cfg'",
                ["--data", "feeds"],
                r"my\.cfg, line 2: FilterPruning stands here, but an override_prune_cfg only skips",
            ),
        ],
    )
    def test_faults(self, there, capsys, text: str | None, arguments: list[str], words: str) -> None:
        if text is None:
            Path("auto.cfg").unlink()
        else:
            Path("auto.cfg").write_text(text)
        fails(capsys, there, [*self.COMMAND, *arguments], words)

    def test_a_config_of_the_other_kind(self, there, capsys) -> None:
        command = ["prune", "m.onnx", "--data", "feeds", "-o", "out/m"]
        fails(capsys, there, [*command, "--config", "auto.cfg"], r"auto\.cfg is the config of a search.*--auto-config")
        fails(
            capsys,
            there,
            [*command, "--auto-config", "my.cfg"],
            r"my\.cfg is a config of pruning .*`amct_onnx prune` takes it as --config",
        )

    def test_show(self, there, capsys) -> None:
        Path("o.cfg").write_text('\nskip_layers: "first"')
        Path("auto.cfg").write_text(f"{AUTO} override_prune_cfg: 'o.cfg' max_prune_ratio: 0.3 max_prune_ratio: 0.7")
        command = ["config", "show", "auto.cfg", "--model", "m.onnx"]
        assert main(command) == 0
        out = capsys.readouterr().out
        for words in (
            r"compress_ratio: 1\.5\nascend_optimized: false\nmax_prune_ratio: 0\.7\ntest_iteration: 8",
            r"first +Conv +no: skip_layers, line 2",
            r"second +Conv +searched +prune: the search",
            r"last +Conv +no: it is the model's output 'y'",
            r"1 of 3 layers are searched",
            r"warning: auto\.cfg, line 3: .*max_prune_ratio",
        ):
            assert re.search(words, out), words
        assert main([*command, "--json"]) == 0
        shown = json.loads(capsys.readouterr().out)
        assert set(shown) == {"config", "model", "settings", "layers", "warnings"}
        assert shown["settings"]["compress_ratio"] == 1.5
        assert [(layer["searched"], layer["pruning"]) for layer in shown["layers"]] == [
            (False, None),
            (True, None),
            (False, None),
        ]

    def test_faults_that_are_shown(self, there, capsys) -> None:
        Path("o.cfg").write_text('skip_layers: "frist"')
        Path("auto.cfg").write_text(f"{AUTO} override_prune_cfg: 'o.cfg'")
        command = ["config", "show", "auto.cfg", "--model", "m.onnx"]
        fails(capsys, there, command, r'o\.cfg, line 1, "frist": .*did you mean "first"')
        Path("auto.cfg").write_text("max_prune_ratio: 2")
        fails(capsys, there, command, r"auto\.cfg has 2 faults:\n.*compress_ratio is missing.*\n.*max_prune_ratio is 2")

    def test_a_saving_out_of_reach(self, there, capsys) -> None:
        command = ["prune", "m.onnx", "--saving", "0.97", "--data", "feeds", "-o", "out/m"]
        fails(capsys, there, command, r"saving is 0\.97, but at most 0\.\d+ of the multiply-adds can go; ask for less")


def test_layers_without_normalization_are_named(here, capsys) -> None:
    assert main(["prune", "m.onnx", "--ratio", "0.5", "--importance", "bn_scale", "-o", "out/m"]) == 0
    assert "note: first, second: no BatchNormalization alone reads their channels" in capsys.readouterr().out


def test_a_fitted_record_says_what_it_lacks(here, capsys) -> None:
    np.savez("feed.npz", x=normal(16, 3, 8, 8))
    assert main(["prune", "m.onnx", "--ratio", "0.5", "--data", "feed.npz", "-o", "f", "--quiet"]) == 0
    command = ["apply", "m.onnx", "--record", "f_record.txt", "-o", "again"]
    fails(capsys, here, command, r"\*_pruned_model.onnx .*--structure-only")
    assert main(["record", "check", "f_record.txt", "--model", "m.onnx"]) == 0
    assert main([*command, "--structure-only"]) == 0


def test_a_record_pruned_with_shapes_is_replayed_with_them(here) -> None:
    onnx.save(
        parse(
            "[a] t = Conv(x, w) [b] y = Conv(t, v)",
            "float[n,3,h,k] x",
            "float[n,4,p,q] y",
            {"w": normal(8, 3, 9, 9), "v": normal(4, 8, 1, 1)},
        ),
        "free.onnx",
    )
    shapes = ["--input-shape", "x:1,3,12,12"]
    assert main(["prune", "free.onnx", "--ratio", "0.5", *shapes, "-o", "p", "--quiet"]) == 0
    assert main(["apply", "free.onnx", "--record", "p_record.txt", *shapes, "-o", "again", "--quiet"]) == 0
    assert Path("p_pruned_model.onnx").read_bytes() == Path("again_pruned_model.onnx").read_bytes()


class TestTrial:
    """The pruned model beside the float model."""

    COMMAND = ("prune", "m.onnx", "--ratio", "0.5", "--data", "feed.npz", "-o", "t/m")

    @pytest.fixture(autouse=True)
    def feed(self, here) -> None:
        np.savez(here / "feed.npz", x=normal(16, 3, 8, 8))

    def test_it_is_shown(self, here, capsys) -> None:
        assert main([*self.COMMAND]) == 0
        out = capsys.readouterr().out
        assert re.search(r"tried pruned on the first 1 feed: output SNR -?\d+\.\d dB, ", out)
        assert "fitted to the very feeds" in out
        assert re.search(r"multiply-adds of one sample .* \(-\d\d%\), with x:16,3,8,8", out)
        assert main([*self.COMMAND, "--no-trial"]) == 0
        assert "tried" not in capsys.readouterr().out

    def test_that_there_is_none_is_said(self, here, capsys) -> None:
        assert main(["prune", "m.onnx", "--ratio", "0.5", "-o", "t/m"]) == 0
        assert "not tried beside the float model: that takes --data" in capsys.readouterr().out

    @pytest.mark.parametrize(("wanted", "code"), [("-100", 0), ("200", 1)])
    def test_a_ratio_can_be_asked_for(self, here, capsys, wanted: str, code: int) -> None:
        assert main([*self.COMMAND, "--check-snr", wanted]) == code
        assert ("check failed: pruned: output SNR" in capsys.readouterr().out) == bool(code)

    def test_not_to_try_and_to_ask(self, here, capsys) -> None:
        fails(capsys, here, [*self.COMMAND, "--check-snr", "9", "--no-trial"], "nothing is tried with --no-trial")

    def test_json(self, here, capsys) -> None:
        assert main([*self.COMMAND, "--json"]) == 0
        shown = json.loads(capsys.readouterr().out)
        assert shown["sizes"] == {"x": [16, 3, 8, 8]}
        assert {key: shown["trials"][0][key] for key in ("form", "feeds", "error")} == {
            "form": "pruned",
            "feeds": 1,
            "error": None,
        }


def test_flags_that_a_record_gives_no_meaning_are_refused(here, capsys) -> None:
    prune = ["apply", "m.onnx", "--record", "done_record.txt", "-o", "out/m"]
    for flags in (["--format", "qdq"], ["--qdq-target", "tensorrt"], ["--qdq-recurrent"], ["--tensors", "no.txt"]):
        fails(
            capsys, here, [*prune, *flags], rf"{flags[0]} concerns quantizing, and done_record\.txt does not quantize"
        )
    np.savez("feed.npz", x=normal(1, 3, 8, 8))
    assert main(["quantize", "m.onnx", "--data", "feed.npz", "-o", "q", "--quiet"]) == 0
    quantize = ["apply", "m.onnx", "--record", "q_record.txt", "-o", "out/m"]
    for flags in (["--structure-only"], ["--input-shape", "x:1,3,8,8"]):
        fails(capsys, here, [*quantize, *flags], rf"{flags[0]} concerns pruning, and q_record\.txt quantizes")


def test_strict_holds_for_prune_records(here, capsys) -> None:
    path = here / "done_record.txt"
    # A field that stands twice counts once, with a warning.
    path.write_text(path.read_text().replace('name: "first"', 'name: "first"\n    name: "first"', 1))
    command = ["apply", "m.onnx", "--record", "done_record.txt", "-o", "out/m"]
    fails(capsys, here, [*command, "--strict"], "name stands twice|twice")
    assert main(command) == 0


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--dmq", "0.9"], r"--dmq is 0\.9"),
        (["--skip", "frist"], r"--skip: 'frist' is not in the model; did you mean 'first'"),
        (["--format", "ascend", "--qdq-target", "tensorrt"], "--qdq-target is 'tensorrt', but --format does not name"),
        (["--config", "my.cfg", "--gemm-per-channel"], "--config and --gemm-per-channel exclude each other"),
        (["--config", "my.cfg", "--act", "mse"], "--config and --act exclude each other"),
    ],
)
def test_quantize_speaks_of_its_flags(here, capsys, flags: list[str], words: str) -> None:
    np.savez("feed.npz", x=normal(1, 3, 8, 8))
    fails(capsys, here, ["quantize", "m.onnx", "--data", "feed.npz", "-o", "out/m", *flags], words)


def test_a_config_of_another_kind_is_told_by_name(here, capsys) -> None:
    np.savez("feed.npz", x=normal(1, 3, 8, 8))
    with_data = ["prune", "m.onnx", "--data", "feed.npz", "-o", "out/m"]
    fails(
        capsys,
        here,
        [*with_data, "--auto-config", "my.cfg"],
        r"my\.cfg is a config of pruning .*`amct_onnx prune` takes it as --config",
    )
    (here / "search.cfg").write_text("# searched\ncompress_ratio: 1.3\n")
    for command in (
        ["quantize", "m.onnx", "--data", "feed.npz", "-o", "out/m", "--config", "search.cfg"],
        ["sparsify", "m.onnx", "-o", "out/m", "--config", "search.cfg"],
    ):
        fails(capsys, here, command, r"search\.cfg is (a|the) config of a search")


@pytest.mark.parametrize(
    ("edit", "words"),
    [
        (lambda text: text + text[text.index("prune_record") :], r'"first": producer: it stands in an earlier'),
        (lambda text: text.replace("i: 8", "i: 9", 1), r"'first' has 8 channels, and its range ends at 9; correct"),
        (lambda text: text.replace('"first"', '"relu"', 1), r"'relu' is no layer .*apply the record to the model"),
    ],
)
def test_edited_records(here, capsys, edit: Callable[[str], str], words: str) -> None:
    path = here / "done_record.txt"
    path.write_text(edit(path.read_text()))
    fails(capsys, here, ["apply", "m.onnx", "--record", "done_record.txt", "-o", "out/m"], words)


def test_image_flags_are_named(here, capsys) -> None:
    image = pytest.importorskip("PIL.Image")
    (here / "photos").mkdir()
    image.new("RGB", (8, 8)).save("photos/a.png")
    command = ["prune", "m.onnx", "--ratio", "0.5", "--data", "photos", "-o", "out/m"]
    fails(capsys, here, [*command, "--mean", "128"], "--mean holds 128, .*give --mean and --std in that range")
    fails(capsys, here, [*command, "--batch", "0"], "--batch is 0")


def test_inspect_shows_the_sizes_taken(here, capsys) -> None:
    assert main(["inspect", "m.onnx", "--prune"]) == 0
    out = capsys.readouterr().out
    assert "of the layers that make the channels and of those that read them" in out
    assert re.search(r"multiply-adds in one sample, with x:2,3,8,8$", out.strip())
