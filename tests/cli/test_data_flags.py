"""What ``--data`` takes, through the command."""

from __future__ import annotations

import re

import numpy as np
import onnx
import pytest

from amct_onnx import quantize
from amct_onnx.cli import main
from amct_onnx.record import load_record
from tests.models import normal, parse

ONE = parse("[conv] y = Conv(x, w)", "float[1,3,4,4] x", "float[1,2,4,4] y", {"w": normal(2, 3, 1, 1)})
TWO = parse(
    "g = Gather(t, ids)  s = Add(g, x)  [fc] y = MatMul(s, w)",
    "float[2,4] x, int64[2] ids",
    "float[2,3] y",
    {"t": normal(8, 4, seed=1), "w": normal(4, 3)},
)


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    onnx.save(ONE, "one.onnx")
    onnx.save(TWO, "two.onnx")
    for folder in ("x", "ids", "images", "arrays"):
        (tmp_path / folder).mkdir()
    np.savez("arrays/a.npz", x=normal(1, 3, 4, 4))
    for number in range(2):
        normal(2, 4, seed=number).tofile(tmp_path / "x" / f"{number}.bin")
        np.array([number, 5], np.int64).tofile(tmp_path / "ids" / f"{number}.bin")
    return tmp_path


RAW = ("two.onnx", "--data", "x/;ids/", "--input-shape", "x:2,4;ids:2", "--data-types", "float32;int64")


def test_raw_files_of_two_inputs(here) -> None:
    assert main(["quantize", *RAW, "-o", "out/m", "-q"]) == 0
    feeds = [{"x": normal(2, 4, seed=number), "ids": np.array([number, 5])} for number in range(2)]
    assert load_record("out/m_record.txt").record == quantize(TWO, feeds, trial=False).record


def test_raw_files_are_float32_unless_said(here) -> None:
    normal(1, 3, 4, 4).tofile("images/a.bin")
    arguments = ["quantize", "one.onnx", "--data", "images", "--input-shape", "x:1,3,4,4", "-o", "out/m", "-q"]
    assert main(arguments) == 0
    wanted = quantize(ONE, [normal(1, 3, 4, 4)], trial=False).record
    assert load_record("out/m_record.txt").record == wanted


def test_a_shape_belongs_to_raw_files_and_not_to_arrays(here, capsys) -> None:
    arguments = ["quantize", "one.onnx", "--data", "arrays/a.npz", "--input-shape", "x:1,3,4,4", "-o", "out/m"]
    assert main(arguments) == 2
    assert "--input-shape concerns folders of .bin files; leave it out" in capsys.readouterr().err


def test_images(here) -> None:
    image = pytest.importorskip("PIL.Image")
    pixels = np.random.default_rng(0).integers(0, 256, (2, 6, 8, 3), np.uint8)
    for number, values in enumerate(pixels):
        image.fromarray(values).save(f"images/{number}.png")
    flags = ["--crop", "4", "--color", "BGR", "--mean", "0.5,0.4,0.3", "--std", "0.2", "--layout", "NCHW"]
    assert main(["quantize", "one.onnx", "--data", "images", *flags, "-o", "out/m", "-q"]) == 0
    middle = pixels[:, 1:5, 2:6, ::-1].astype(np.float32) / np.float32(255)
    arrays = (middle - np.array([0.5, 0.4, 0.3], np.float32)) / np.float32(0.2)
    feeds = [array[None].transpose(0, 3, 1, 2) for array in arrays]
    assert load_record("out/m_record.txt").record == quantize(ONE, feeds, trial=False).record
    assert main(["quantize", "one.onnx", "--data", "images", "-o", "out/m", "-q"]) == 2


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--data", "x"), "raw .bin files hold no shapes; give them: --input-shape"),
        (("--data", "x;ids", "--input-shape", "x:2,4"), "2 folders, 1 input shapes, 1 data types"),
        (("--data", "x", "--input-shape", "x:2,4", "--data-types", "f4"), "data type 'f4' is unknown"),
        (("--data", "x", "--input-shape", "x:2,5"), "x/0.bin: 32 bytes, but input 'x' of shape [2, 5]"),
        (("--data", "x;nope", "--input-shape", "x:2,4;ids:2"), "nope: no such folder"),
        (("--data", "x", "--input-shape", "x:2,4", "--mean", "1"), "--mean concerns images, not raw files"),
        (("--data", "arrays", "--data-types", "int8"), "--data-types concerns folders of .bin files"),
        (("--data", "arrays", "--input-shape", "x:2,4"), "--input-shape concerns folders of .bin files"),
        (("--data", "arrays/a.npz", "--input-shape", "x:2,4"), "--input-shape concerns folders of .bin files"),
        (("--data", "arrays", "--crop", "4"), "--crop concerns images, and arrays holds none"),
        (("--data", "arrays", "--no-scale"), "--no-scale concerns images"),
        (("--statistics", "s.npz", "--batch", "4"), "--batch belongs to --data, which is not given"),
        (("--data", "images"), "images: the folder holds no .npz or .npy file (nor .bin files or images)"),
    ],
)
def test_flags_that_do_not_fit(here, capsys, arguments, words: str) -> None:
    assert main(["quantize", "one.onnx", *arguments, "-o", "out/m"]) == 2
    assert re.search(re.escape(words), capsys.readouterr().err)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--resize", "0"), "--resize: '0' is no size"),
        (("--resize", "4x"), "--resize: '4x' is no size"),
        (("--resize", "9" * 5000), "999' is no size"),
        (("--crop", "1x2x3"), "--crop: '1x2x3' is no size"),
        (("--mean", "a"), "--mean: 'a' is no list of numbers"),
        (("--std", "0"), "std holds 0"),
    ],
)
def test_image_flags_that_mean_nothing(here, capsys, arguments, words: str) -> None:
    image = pytest.importorskip("PIL.Image")
    image.fromarray(np.zeros((4, 4, 3), np.uint8)).save("images/a.png")
    assert main(["quantize", "one.onnx", "--data", "images", *arguments, "-o", "out/m"]) == 2
    assert words in capsys.readouterr().err


def test_an_output_that_would_overwrite_a_feed(here, capsys) -> None:
    (here / "x" / "0.bin").rename(here / "x" / "m_record.txt.bin")
    assert main(["quantize", *RAW, "--save-statistics", "ids/0.bin", "-o", "out/m"]) == 2
    assert "would overwrite an input" in capsys.readouterr().err
