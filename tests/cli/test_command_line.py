"""The command as a hostile user runs it: exit codes, streams, files."""

import json
import re

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from amct_onnx.cli import main

FORMS = {"m_deploy_model.onnx", "m_fake_quant_model.onnx", "m_qdq_model.onnx"}
PLAN = {"m_record.txt", "m_tensors.txt", "m_quant.json"}


def net(name="conv"):
    weight = np.random.default_rng(0).normal(size=(4, 3, 3, 3)).astype(np.float32)
    graph = helper.make_graph(
        [helper.make_node("Conv", ["x", "w"], ["y"], name=name)],
        "g",
        [helper.make_tensor_value_info("x", 1, ["N", 3, 8, 8])],
        [helper.make_tensor_value_info("y", 1, ["N", 4, 6, 6])],
        [numpy_helper.from_array(weight, "w")],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A working folder with m.onnx and feed.npz."""
    monkeypatch.chdir(tmp_path)
    onnx.save(net(), "m.onnx")
    np.savez("feed.npz", x=np.random.default_rng(1).normal(size=(2, 3, 8, 8)).astype(np.float32))
    return tmp_path


QUANTIZE = ("quantize", "m.onnx", "--data", "feed.npz", "-o", "out/m")


def files(folder):
    return {path.name for path in folder.iterdir()} if folder.exists() else set()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--format", ""), "--format"),
        (("--format", "qdq,QDK"), "qdk"),
        (("--format", "ascend", "--check-snr", "30"), "--check-snr"),
        (("--format", "ascend", "--qdq-target", "tensorrt"), "tensorrt"),
        (("--check-snr", "nan"), "--check-snr"),
        (("--quiet", "--verbose"), "not allowed with"),
        (("--skip", "nope"), "'nope'"),
        (("--skip", "conv"), "skipped on request"),
        (("--frob",), "--frob"),
        (("--data", "nope.npz"), "nope.npz"),
        (("--data", "m.onnx"), r"m\.onnx.*\.npz or \.npy"),
        (("-o", "out/"), "like out/model"),
        (("-o", "m.onnx/m"), r"m\.onnx: cannot write"),
        (("-o", "a\0b/m"), "file name"),
    ],
)
def test_nonsense_ends_with_two_and_leaves_nothing(here, capsys, arguments, words):
    assert main([*QUANTIZE, *arguments]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert re.search(words, err)
    assert "Traceback" not in err
    assert files(here) == {"m.onnx", "feed.npz"}


MISSPELT = [
    # What the flag was to give is missing, too, but that is not the fault.
    (
        ["quantize", "m.onnx", "--dta", "data", "-o", "x"],
        "amct_onnx quantize",
        "--dta; did you mean --data?",
    ),
    (["prune", "m.onnx", "--ration=0.5", "-o", "x"], "amct_onnx prune", "unknown flag --ration; did you mean --ratio?"),
    (["config", "show", "a.cfg", "--modle", "m.onnx"], "amct_onnx config show", "did you mean --model?"),
    (["record", "check", "r.txt", "--zzz"], "amct_onnx record check", "--zzz; see amct_onnx record check --help"),
    (["inspect", "m.onnx", "n.onnx"], "amct_onnx inspect", "unrecognized arguments: n.onnx"),
    (["inspect", "m.onnx", "-z"], "amct_onnx inspect", "unrecognized arguments: -z"),
    (["sparsify", "m.onnx"], "amct_onnx sparsify", "the following arguments are required: -o/--output"),
    (["recrod", "check"], "amct_onnx", "invalid choice: 'recrod'"),
]


@pytest.mark.parametrize(("arguments", "command", "words"), MISSPELT)
def test_misuse_shows_the_usage_of_the_command_that_was_called(here, capsys, arguments, command, words):
    assert main(arguments) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith(f"usage: {command} [-h]")
    last = err.splitlines()[-1]
    assert last.startswith(f"{command}: error: ")
    assert words in last


@pytest.mark.parametrize("flags", [["--trace"], ["--input-shape", "x:1,3,8,8"], ["--input-shape=x:1,3,8,8"]])
def test_beginnings_of_flags_and_values_are_not_misspelt(here, capsys, flags):
    assert main(["inspect", "m.onnx", *flags]) == 0


@pytest.mark.parametrize(
    ("content", "words"),
    [(None, "No such file"), (b"", "no ONNX graph"), (b"text " * 9, "not an ONNX model"), ("cut", "not an ONNX model")],
)
@pytest.mark.parametrize("command", ["quantize", "inspect"])
def test_no_model(here, capsys, command, content, words):
    whole = (here / "m.onnx").read_bytes()
    if content is not None:
        (here / "bad.onnx").write_bytes(whole[:-9] if content == "cut" else content)
    arguments = ["quantize", "bad.onnx", *QUANTIZE[2:]] if command == "quantize" else ["inspect", "bad.onnx"]
    assert main([*arguments, "--json"]) == 2
    out, err = capsys.readouterr()
    assert json.loads(out)["error"]["exit_code"] == 2
    assert re.search(rf"error: bad\.onnx.*{words}", err)


def test_a_folder_as_model(here, capsys):
    assert main(["inspect", "."]) == 2
    assert "Is a directory" in capsys.readouterr().err


def test_traceback_on_request_only(here, capsys):
    assert main(["inspect", "nope", "--traceback"]) == 2
    assert "Traceback" in capsys.readouterr().err


def test_json_is_one_object_and_all_else_goes_to_stderr(here, capsys):
    assert main([*QUANTIZE, "--json", "--check-snr", "1000"]) == 1
    out, err = capsys.readouterr()
    assert {trial["form"] for trial in json.loads(out)["trials"]} == {"fake_quant", "qdq"}
    assert re.search(r"check failed: qdq: output SNR [\d.]+ dB, asked for 1000 dB", err)
    assert files(here / "out") == FORMS | PLAN


def test_quiet_says_nothing(here, capsys):
    for arguments in (
        QUANTIZE,
        ("apply", "m.onnx", "--record", "out/m_record.txt", "-o", "b/m"),
        ("inspect", "m.onnx"),
    ):
        assert main([*arguments, "-q"]) == 0
    assert capsys.readouterr() == ("", "")


def test_only_what_was_asked_for_is_written(here):
    assert main([*QUANTIZE, "--format", " qdq , qdq"]) == 0
    assert files(here / "out") == {"m_qdq_model.onnx"} | PLAN


def test_output_is_checked_before_the_work(here, capsys, monkeypatch):
    monkeypatch.setattr("amct_onnx.cli.quantize.quantize", lambda *_args, **_kwargs: pytest.fail("calibrated first"))
    (here / "out" / "m_record.txt").mkdir(parents=True)
    assert main([*QUANTIZE]) == 2
    assert "in the way" in capsys.readouterr().err


def test_the_documented_round_trip_keeps_the_edited_record(here):
    assert main([*QUANTIZE]) == 0
    record = here / "out" / "m_record.txt"
    record.write_text(re.sub(r"scale_d: \S+", "scale_d: 0.5", record.read_text()) + "# by hand\n")
    before = record.read_bytes()
    assert main(["apply", "m.onnx", "--record", str(record), "-o", "out/m"]) == 0
    assert record.read_bytes() == before
    deploy = onnx.load(here / "out" / "m_deploy_model.onnx")
    assert [attribute.f for attribute in deploy.graph.node[0].attribute if attribute.name == "scale"] == [2.0]


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        (r"sha256: \w+", "sha256: " + "0" * 64, "_record.txt: the record was made for another model"),
        ("recomputable", "modified", "modified"),
        (r'key: "conv"', 'key: "convx"', 'did you mean "conv"'),
        (r"scale_d: \S+", "scale_d: 0", "positive"),
    ],
)
def test_checking_a_record_finds_what_applying_it_would(here, capsys, old, new, words):
    assert main([*QUANTIZE, "-q"]) == 0
    record = here / "out" / "m_record.txt"
    record.write_text(re.sub(old, new, record.read_text()))
    assert main(["record", "check", str(record), "--model", "m.onnx"]) == 1
    assert words in capsys.readouterr().out
    assert main(["apply", "m.onnx", "--record", str(record), "-o", "again/m"]) == 2
    assert words in capsys.readouterr().err
    assert not (here / "again").exists()


def test_names_in_any_script(here, capsys):
    onnx.save(net('层/é "q"\n'), "模型.onnx")
    assert main(["quantize", "模型.onnx", *QUANTIZE[2:-1], "выход/m"]) == 0
    assert files(here / "выход") == FORMS | PLAN
    assert main(["apply", "模型.onnx", "--record", "выход/m_record.txt", "-o", "b/m", "--json"]) == 0
    assert json.loads(capsys.readouterr().out.partition("\n{")[2].join(["{", ""]))["layers"][0]["name"].startswith("层")


def test_interrupting_leaves_nothing(here, capsys, monkeypatch):
    def interrupted(*_args, **_kwargs):
        raise KeyboardInterrupt

    monkeypatch.setattr("amct_onnx.api.result.write_model", interrupted)
    assert main([*QUANTIZE]) == 130
    assert capsys.readouterr().err == "interrupted\n"
    assert files(here / "out") == set()


def test_a_fault_of_ours_is_called_so(here, capsys, monkeypatch):
    monkeypatch.setattr("amct_onnx.cli.inspect.inspect", lambda _model, **_: {}["a bug"])
    assert main(["inspect", "m.onnx"]) == 3
    assert "internal error: KeyError" in capsys.readouterr().err
