"""Raw .bin files as calibration feeds."""

from __future__ import annotations

import re
import struct

import numpy as np
import pytest

from amct_onnx import quantize
from amct_onnx.analyse.bin_feeds import BinFeeds, parse_data_types, parse_folders
from amct_onnx.errors import DataError, UsageError
from tests.models import normal, parse


@pytest.fixture
def two(tmp_path):
    """Two folders with two feeds each: float32 [1, 2] and int64 [2]."""
    for folder in ("x", "ids"):
        (tmp_path / folder).mkdir()
    for number in (0, 1):
        (tmp_path / "x" / f"{number}.bin").write_bytes(struct.pack("<2f", number, 0.5))
        (tmp_path / "ids" / f"part{number}.bin").write_bytes(struct.pack("<2q", -number, 7))
    return [tmp_path / "x", tmp_path / "ids"]


SHAPES = {"x": (1, 2), "a:b": (2,)}
TYPES = ("float32", "int64")


def test_file_i_of_each_folder_forms_feed_i(two) -> None:
    feeds = BinFeeds(two, SHAPES, TYPES)
    assert len(feeds) == 2
    assert [path.name for path in feeds.files] == ["0.bin", "part0.bin", "1.bin", "part1.bin"]
    for _ in range(2):
        first, second = feeds
        assert list(first) == ["x", "a:b"]
        assert (first["x"].tolist(), second["x"].tolist()) == ([[0.0, 0.5]], [[1.0, 0.5]])
        assert (first["a:b"].tolist(), second["a:b"].tolist()) == ([0, 7], [-1, 7])
        assert (second["x"].dtype, second["a:b"].dtype) == (np.float32, np.int64)
    assert feeds.label(1) == f"{two[0] / '1.bin'}, {two[1] / 'part1.bin'}"


def test_ascending_name_order_and_other_files_left_out(tmp_path) -> None:
    for number, name in enumerate(["batch2.bin", "batch10.bin", "batch1.BIN"]):
        (tmp_path / name).write_bytes(bytes([number]))
    (tmp_path / "notes.txt").write_text("?")
    (tmp_path / ".hidden.bin").write_bytes(b"123")
    feeds = BinFeeds([tmp_path], {"x": (1,)}, ["uint8"])
    assert [feed["x"].item() for feed in feeds] == [2, 1, 0]


@pytest.mark.parametrize("name", ["float16", "float64", "int8", "int16", "int32", "uint16", "uint32", "uint64", "bool"])
def test_every_type(tmp_path, name: str) -> None:
    values = np.array([0, 1, 1], name)
    values.tofile(tmp_path / "a.bin")
    (feed,) = BinFeeds([tmp_path], {"x": (3,)}, parse_data_types(name))
    assert feed["x"].dtype == values.dtype
    np.testing.assert_array_equal(feed["x"], values)


def test_counts_that_differ(two) -> None:
    with pytest.raises(UsageError, match="2 folders, 1 input shapes, 2 data types were given; give one of each"):
        BinFeeds(two, {"x": (1, 2)}, TYPES)
    (two[1] / "part2.bin").write_bytes(struct.pack("<2q", 0, 0))
    with pytest.raises(DataError, match=re.escape(f"{two[0]} holds 2 .bin files, {two[1]} holds 3")):
        BinFeeds(two, SHAPES, TYPES)


def test_a_size_that_does_not_match(two) -> None:
    with pytest.raises(DataError) as fault:
        BinFeeds(two, {"x": (1, 3), "a:b": (2,)}, TYPES)
    expected = f"{two[0] / '0.bin'}: 8 bytes, but input 'x' of shape [1, 3] and type float32 takes 12; correct"
    assert str(fault.value).startswith(expected)


def test_folders_that_are_not_there_or_empty(two, tmp_path) -> None:
    with pytest.raises(DataError, match="nope: no such folder"):
        BinFeeds([tmp_path / "nope", two[1]], SHAPES, TYPES)
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match=r"empty: the folder holds no \.bin file"):
        BinFeeds([tmp_path / "empty", two[1]], SHAPES, TYPES)


def test_a_file_that_changes_under_way(two) -> None:
    feeds = BinFeeds(two, SHAPES, TYPES)
    (two[0] / "0.bin").write_bytes(b"")
    with pytest.raises(DataError, match=r"0\.bin: 0 bytes"):
        list(feeds)
    (two[0] / "0.bin").unlink()
    with pytest.raises(DataError, match=r"0\.bin: cannot be read"):
        list(feeds)


def test_data_types_and_folders() -> None:
    assert [dtype.name for dtype in parse_data_types("float32; int64;")] == ["float32", "int64"]
    assert [str(path) for path in parse_folders("a/b/;c")] == ["a/b", "c"]
    for text in ("float", "", "float32;string", "<f4"):
        with pytest.raises(UsageError, match=r"is unknown; choose from float16, float32, .*, bool"):
            parse_data_types(text)


def test_all_inputs_are_fed_in_one_run(tmp_path) -> None:
    model = parse(
        "s = Add(x, z)  [fc] y = MatMul(s, w)", "float[1,4] x, float[1,4] z", "float[1,3] y", {"w": normal(4, 3)}
    )
    arrays = {name: normal(2, 1, 4, seed=seed) for seed, name in enumerate("xz")}
    for name, values in arrays.items():
        (tmp_path / name).mkdir()
        for number, value in enumerate(values):
            value.tofile(tmp_path / name / f"{number}.bin")
    feeds = BinFeeds([tmp_path / "x", tmp_path / "z"], {"x": (1, 4), "z": (1, 4)}, ["float32", "float32"])
    by_hand = [{name: values[number] for name, values in arrays.items()} for number in range(2)]
    assert quantize(model, feeds, trial=False).record == quantize(model, by_hand, trial=False).record


def test_the_files_of_a_feed_are_named(tmp_path) -> None:
    model = parse("[fc] y = MatMul(x, w)", "float[1,4] x", "float[1,3] y", {"w": normal(4, 3)})
    normal(2, 4).tofile(tmp_path / "a.bin")
    with pytest.raises(DataError, match=r"feed 0 \(.*a\.bin\), input 'x': shape \[2, 4\] does not fit the model's"):
        quantize(model, BinFeeds([tmp_path], {"x": (2, 4)}, ["float32"]))
    with pytest.raises(DataError, match="'z', which is no input"):
        quantize(model, BinFeeds([tmp_path], {"z": (2, 4)}, ["float32"]))
