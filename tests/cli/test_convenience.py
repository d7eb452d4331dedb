"""Small things that users met on the way: what is refused at once, what is said, what JSON holds."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest

import amct_onnx
from amct_onnx.cli import main
from amct_onnx.errors import DataError, ModelError
from tests.attack.small_models import FEED, conv_net

QUANTIZE = ("quantize", "m.onnx", "-o", "out/m")


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    onnx.save(conv_net(), "m.onnx")
    np.savez("feed.npz", x=FEED)
    assert main([*QUANTIZE, "--data", "feed.npz", "--save-statistics", "s.npz", "-q"]) == 0
    return tmp_path


def test_verbose_shows_the_seconds_of_every_step(here, capsys):
    assert main([*QUANTIZE, "--data", "feed.npz", "-v"]) == 0
    out = capsys.readouterr().out
    for step in ("calibrating", "choosing scales", "trying", "writing"):
        assert step in out
    seconds = amct_onnx.quantize("m.onnx", [FEED]).report.seconds
    assert {"calibrating", "choosing scales", "trying"} <= seconds.keys()
    assert all(value >= 0 for value in seconds.values())


def test_statistics_cannot_be_tried_on(here, capsys):
    assert main([*QUANTIZE, "--statistics", "s.npz", "--check-snr", "20"]) == 2
    assert capsys.readouterr().err.count("\n") == 1
    assert main([*QUANTIZE, "--statistics", "s.npz"]) == 0
    assert "no model was tried: statistics hold no feeds" in capsys.readouterr().out


def test_no_trial_on_request(here, capsys):
    assert main([*QUANTIZE, "--data", "feed.npz", "--no-trial", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["trials"] == []
    assert main([*QUANTIZE, "--data", "feed.npz", "--no-trial", "--check-snr", "1"]) == 2


def test_empty_batches_contribute_nothing():
    nothing = np.zeros((0, 3, 8, 8), np.float32)
    among = amct_onnx.quantize(conv_net(), [nothing, FEED, nothing])
    alone = amct_onnx.quantize(conv_net(), [FEED])
    assert among.report.feeds == 1
    assert among.record_text() == alone.record_text()
    with pytest.raises(DataError, match="all 2 feeds of the calibration data are empty batches"):
        amct_onnx.quantize(conv_net(), [nothing, nothing])


def test_a_path_serves_as_data(here):
    by_path = amct_onnx.quantize("m.onnx", "feed.npz").record_text()
    (here / "feeds").mkdir()
    np.savez("feeds/0.npz", x=FEED)
    assert by_path == amct_onnx.quantize("m.onnx", here / "feeds").record_text()
    assert by_path == amct_onnx.quantize("m.onnx", [FEED]).record_text()


@pytest.mark.parametrize(("file", "form"), [("m_deploy_model", "deploy"), ("m_fake_quant_model", "fake-quant")])
def test_what_is_compressed_is_not_compressed_again(here, file, form):
    with pytest.raises(ModelError, match=rf"'conv\.quant.*is a {form} model already"):
        amct_onnx.quantize(f"out/{file}.onnx", [FEED])


def test_notes_about_the_tensors_file_name_it(here):
    path = here / "out" / "m_tensors.txt"
    path.write_text(path.read_text().replace('key: "', 'key: "typo_', 1))
    notes = amct_onnx.apply("m.onnx", here / "out" / "m_record.txt").report.notes
    assert [note for note in notes if str(path) in note and "typo_" in note]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [(("--data", "nope.npz"), "nope.npz"), (("--data", "feed.npz", "--frob"), "--frob"), (("--act", "x"), "--act")],
)
def test_failures_are_json_as_well(here, capsys, arguments, words):
    assert main([*QUANTIZE, *arguments, "--json"]) == 2
    streams = capsys.readouterr()
    error = json.loads(streams.out)["error"]
    assert error["exit_code"] == 2
    assert words in error["message"]
    assert error["message"] in streams.err


def test_free_sizes_are_fixed_for_inspection(here, capsys):
    weights = 4 * 3 * 3 * 3
    assert main(["inspect", "m.onnx"]) == 0
    assert "--input-shape" in capsys.readouterr().out
    assert main(["inspect", "m.onnx", "--input-shape", "x:5,3,8,8", "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)["facts"]
    assert facts[0]["multiply_adds"] == 5 * 8 * 8 * weights
    assert main(["inspect", "m.onnx", "--input-shape", "z:1"]) == 2
    assert "'z' is no input" in capsys.readouterr().err
    assert main(["inspect", "m.onnx", "--input-shape", "x:1,4,8,8"]) == 2


def test_an_early_interrupt_shows_no_traceback(here):
    code = (
        "import sys, amct_onnx.cli\n"
        "def stop(): raise KeyboardInterrupt\n"
        "m = sys.modules['amct_onnx.cli.main']\n"
        "m.build_parser = stop\n"
        "sys.exit(m.main(['inspect', 'm.onnx']))"
    )
    environment = {**os.environ, "PYTHONPATH": str(Path(amct_onnx.__file__).parents[1])}
    command = [sys.executable, "-c", code]
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert ended.returncode == 130
    assert ended.stderr == "interrupted\n"


def test_fake_quant_names_of_others_are_no_obstacle():
    net = conv_net()
    net.graph.node[0].name = "my.fakequantized"
    assert amct_onnx.quantize(net, [FEED]).report.layers
