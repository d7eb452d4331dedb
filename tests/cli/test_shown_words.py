"""What commands show: records of every kind, findings that are alike, models that are none of deploy."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path

import numpy as np
import onnx
import pytest

import amct_onnx
from amct_onnx.api.result import TrialResult
from amct_onnx.cli import main
from amct_onnx.cli.console import Console
from amct_onnx.cli.trials import show_trials
from amct_onnx.cli.words import grouped, together
from amct_onnx.record import PruneNode, PruneRecord, Record, format_record, pack_mask
from tests.models import normal, parse


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def shown(capsys: pytest.CaptureFixture[str], *command: str) -> str:
    capsys.readouterr()
    assert main(list(command)) == 0
    return capsys.readouterr().out


def test_sentences_that_differ_in_numbers_are_one() -> None:
    found = [
        ("a", "3 of 4, to 1.5e-07", "x"),
        ("a", "30 of 4, to 2", "y"),
        ("b", "3 of 4, to 1.5e-07", "z"),
        ("a", "all of 4", "w"),
    ]
    assert list(grouped(found)) == [
        ("a", "3 of 4, to 1.5e-07 (numbers of the first)", ["x", "y"]),
        ("b", "3 of 4, to 1.5e-07", ["z"]),
        ("a", "all of 4", ["w"]),
    ]


@pytest.mark.parametrize(
    ("trial", "words"),
    [
        (TrialResult("qdq", 3.0, feeds=1, speed_up=2.0), "SNR 3.0 dB, 2.0 times as fast"),
        (TrialResult("qdq", 3.0, feeds=1, snr_db_by_feed=(3.0,)), "SNR 3.0 dB\n"),
        (
            TrialResult("qdq", 3.0, feeds=3, snr_db_by_feed=(9.04, math.nan, 1.0), speed_up=2.0),
            r"SNR 3.0 dB \(single feeds: 1.0 to 9.0\), 2.0 times",
        ),
        (TrialResult("qdq", 3.0, feeds=2, snr_db_by_feed=(math.inf, 0.5)), r"\(single feeds: 0.5 to inf\)\n"),
        (TrialResult("qdq", math.inf, feeds=2, snr_db_by_feed=(math.inf, math.inf)), "without any difference\n"),
        (TrialResult("sparse", -0.5, feeds=1), "SNR -0.5 dB, more noise than signal"),
        (TrialResult("pruned", 9.0, feeds=1, speed_up=0.5), r"\(0.50 times its speed\): multiples of 8 channels"),
        (TrialResult("qdq", 9.0, feeds=1, speed_up=0.996), "SNR 9.0 dB, as fast as float in a few runs here\n"),
        (TrialResult("modified", 9.0, feeds=1, speed_up=0.5), r"\(0.50 times its speed\): multiples of 8 channels"),
        (TrialResult("qdq", 9.0, feeds=1, speed_up=0.5), r"\(0.50 times its speed\): float or another runtime"),
    ],
)
def test_trials(trial: TrialResult, words: str, capsys: pytest.CaptureFixture[str]) -> None:
    show_trials(Console(), [trial])
    assert re.search(words, capsys.readouterr().out)


def test_scales_of_recurrent_layers(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    onnx.save(
        parse(
            "[rec] a, h, = LSTM<hidden_size = 4>(x, W, R) [last] y = MatMul(h, v)",
            "float[6,n,5] x",
            "float[1,n,3] y",
            {"W": normal(1, 16, 5, seed=1), "R": normal(1, 16, 4, seed=2), "v": normal(4, 3, seed=3)},
        ),
        "m.onnx",
    )
    np.savez("feed.npz", x=normal(6, 2, 5))
    assert main(["quantize", "m.onnx", "--data", "feed.npz", "-o", "q", "--format", "fake_quant", "-q"]) == 0
    entry = amct_onnx.record.load_record("q_record.txt").record.layers["rec"]
    text = shown(capsys, "record", "show", "q_record.txt")
    row = re.search(
        r"^rec +(\S+) +(-?\d+) +(\d+) +(\S+) \.\. (\S+)$", text[text.index("recurrent entry") :], re.MULTILINE
    )
    assert row is not None
    assert np.float32(row[1]) == np.float32(entry.scale_h)
    assert (int(row[2]), int(row[3])) == (entry.offset_h, len(entry.scale_r))
    assert float(row[4]) == pytest.approx(min(entry.scale_r), rel=1e-3)


def test_prune_records_and_masks(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    producer = PruneNode("first").with_attr("type", "Conv").with_attr("begin", 0).with_attr("end", 8)
    reader = PruneNode("last").with_attr("type", "Conv").with_attr("begin", 0).with_attr("end", 8)
    mask = np.tile([True, False, False, True], 6).reshape(3, 8)
    thinned = PruneNode("fc").with_attr("mask_shape", (3, 8)).with_attr("selective_mask", pack_mask(mask))
    waiting = PruneNode("later").with_attr("mask_shape", (2, 2))
    record = Record(
        prune=(
            PruneRecord((producer.with_attr("prune_index", (1, 5, 6)),), (reader.with_attr("prune_index", (1, 5, 6)),)),
            PruneRecord(selective_prune=thinned),
            PruneRecord(selective_prune=waiting),
        )
    )
    Path("r.txt").write_text(format_record(record))
    text = shown(capsys, "record", "show", "r.txt")
    assert re.search(r"^ *0 +first \(3 of 8\) +last$", text, re.MULTILINE)
    assert re.search(r"^fc +\[3, 8\] +12$", text, re.MULTILINE)
    assert re.search(r"^later +\[2, 2\]$", text, re.MULTILINE)
    first, second, third = json.loads(shown(capsys, "record", "show", "r.txt", "--json"))["prune"]
    assert first == {
        "producers": ["first"],
        "consumers": ["last"],
        "removed": {"first": [1, 5, 6]},
        "selective_prune": None,
        "mask": None,
    }
    assert second["mask"] == {"layer": "fc", "shape": [3, 8], "kept": 12}
    assert third["mask"] == {"layer": "later", "shape": [2, 2], "kept": None}


def test_a_float_model_is_no_deploy_model(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    onnx.save(parse("y = Relu(x)"), "float.onnx")
    text = shown(capsys, "check-deploy", "float.onnx")
    assert text.splitlines()[-1] == "float.onnx: this is no deploy model, so nothing that quantizes was checked"
    assert "no layer is quantized for Ascend" in text


def test_reasons_that_differ_in_the_line_alone_are_one() -> None:
    found = [
        ("a", "skip_layers, line 9"),
        ("b", "it has 1 input"),
        ("c", "skip_layers, line 3"),
        ("d", "skip_types, line 4"),
        ("e", "it has 2 inputs"),
    ]
    assert list(together(found)) == [
        ("skip_layers, lines 3 to 9", ["a", "c"]),
        ("it has 1 input", ["b"]),
        ("skip_types, line 4", ["d"]),
        ("it has 2 inputs", ["e"]),
    ]


def test_layers_that_a_config_leaves_stand_in_one_line(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    onnx.save(
        parse(
            "[a] s = Conv(x, w) [b] t = Conv(s, v) [c] r = Conv(t, v2) [d] y = Conv(r, u)",
            "float[1,4,4,4] x",
            "float[1,4,4,4] y",
            {"w": normal(8, 4, 1, 1), "v": normal(8, 8, 1, 1), "v2": normal(8, 8, 1, 1), "u": normal(4, 8, 1, 1)},
        ),
        "m.onnx",
    )
    skips = 'regular_prune_skip_layers: "a"\nregular_prune_skip_layers: "b"\n'
    Path("thin.cfg").write_text(skips + "prune_config { n_out_of_m_pruner { l1_selective_prune {} } }\n")
    said = shown(capsys, "sparsify", "m.onnx", "--config", "thin.cfg", "-o", "thin")
    assert "left as they are (2 layers):\n  a, b: regular_prune_skip_layers, lines 1 to 2\n" in said


def test_findings_alike_are_one_line(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    # Layers of 3 and of 8 input channels: few of both.
    onnx.save(
        parse(
            "[a] s = Conv(x, w) [b] t = Conv(s, v) [c] y = Conv(t, u)",
            "float[1,3,4,4] x",
            "float[1,4,4,4] y",
            {"w": normal(8, 3, 1, 1), "v": normal(8, 8, 1, 1), "u": normal(4, 8, 1, 1)},
        ),
        "m.onnx",
    )
    np.savez("feed.npz", x=normal(1, 3, 4, 4))
    assert main(["quantize", "m.onnx", "--data", "feed.npz", "-o", "q", "--format", "ascend", "-q"]) == 0
    lines = [line for line in shown(capsys, "check-deploy", "q_deploy_model.onnx").splitlines() if "channels" in line]
    assert len(lines) == 1
    assert "a, b, c: 3 input channels; with 16 or fewer" in lines[0]
    assert "(numbers of the first)" in lines[0]
