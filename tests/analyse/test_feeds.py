import numpy as np
import pytest

from amct_onnx.analyse.feed_files import find_feeds
from amct_onnx.analyse.feeds import iterate_feeds
from amct_onnx.errors import DataError
from amct_onnx.runtime import InputSpec

ONE = (InputSpec("x", np.dtype(np.float32), ("N", 3)),)
TWO = (InputSpec("ids", np.dtype(np.int64), ("N", "S")), InputSpec("mask", np.dtype(np.int64), ("N", "S")))
ARRAY = np.arange(6, dtype=np.float32).reshape(2, 3)


class Tensor:
    """What a torch tensor offers."""

    def __init__(self, array):
        self.array = array

    def detach(self):
        return self

    def cpu(self):
        return self

    def numpy(self):
        return self.array


class Reader:
    """What onnxruntime's CalibrationDataReader offers."""

    def __init__(self, feeds):
        self.feeds = iter(feeds)

    def get_next(self):
        return next(self.feeds, None)


@pytest.mark.parametrize(
    "data",
    [
        [{"x": ARRAY}],
        [ARRAY],
        [ARRAY.tolist()] and [np.array(ARRAY.tolist())],
        [(ARRAY,)],
        [(ARRAY, np.array([1, 0]))],
        [[ARRAY, "label"]],
        [Tensor(ARRAY)],
        [(Tensor(ARRAY), Tensor(np.zeros(2)))],
        (feed for feed in [ARRAY]),
        Reader([{"x": ARRAY}]),
        [ARRAY.astype(np.float64)],
        [ARRAY.astype(np.float16)],
    ],
    ids=[
        "dict",
        "array",
        "double array",
        "tuple",
        "tuple with labels",
        "list",
        "torch",
        "torch with labels",
        "generator",
        "data reader",
        "float64",
        "float16",
    ],
)
def test_what_may_be_a_feed(data):
    (feed,) = iterate_feeds(data, ONE)
    assert feed["x"].dtype == np.float32
    np.testing.assert_array_equal(feed["x"], ARRAY)


def test_two_inputs_by_position_and_name():
    ids, mask = np.array([[1, 2]], np.int32), np.array([[1, 1]])
    for item in ((ids, mask), {"mask": mask, "ids": ids}):
        (feed,) = iterate_feeds([item], TWO)
        assert list(feed) == ["ids", "mask"]
        assert feed["ids"].dtype == np.int64


@pytest.mark.parametrize(
    ("data", "inputs", "words"),
    [
        (ARRAY, ONE, ["iterable", "list"]),
        ({"x": ARRAY}, ONE, ["iterable", "list"]),
        ("folder", ONE, ["iterable"]),
        (5, ONE, ["iterable", "int"]),
        (
            [{"y": ARRAY}],
            ONE,
            ["feed 0", "holds 'y', which is no input, and has no array for input 'x'", "inputs are x: rename it"],
        ),
        (
            [{"x": ARRAY, "z": ARRAY}],
            ONE,
            ["feed 0", "holds 'z', which is no input; the model's inputs are x: drop it"],
        ),
        ([ARRAY, ARRAY[:, :2]], ONE, ["feed 1", "'x'", "[2, 2]", "[N, 3]"]),
        ([ARRAY[0]], ONE, ["feed 0", "[3]"]),
        ([ARRAY.astype(np.int64)], ONE, ["int64", "float32"]),
        ([np.array([["a", "b", "c"]])], ONE, ["element type"]),
        ([ARRAY], TWO, ["2 inputs", "ids, mask"]),
        ([(ARRAY.astype(np.int64),)], TWO, ["'mask'"]),
        ([(ARRAY, ARRAY)], TWO, ["float32", "int64"]),
    ],
)
def test_what_does_not_fit_is_named(data, inputs, words):
    with pytest.raises(DataError) as caught:
        list(iterate_feeds(data, inputs))
    for word in words:
        assert word in str(caught.value)


def test_integers_that_would_change_are_refused():
    narrow = (InputSpec("i", np.dtype(np.int8), (None,)),)
    with pytest.raises(DataError, match="int8"):
        list(iterate_feeds([np.array([300])], narrow))


def test_folder_of_npz_in_name_order(tmp_path):
    for name in ("b", "a", "c"):
        np.savez(tmp_path / f"{name}.npz", x=np.full((1, 3), ord(name), np.float32))
    (tmp_path / "notes.txt").write_text("not a feed")
    feeds = find_feeds(tmp_path)
    assert len(feeds) == 3
    assert [int(feed["x"][0, 0]) for feed in feeds] == [97, 98, 99]


def test_npy_file_and_folder(tmp_path):
    np.save(tmp_path / "one.npy", ARRAY)
    for path in (tmp_path, tmp_path / "one.npy"):
        (feed,) = find_feeds(path)
        np.testing.assert_array_equal(feed, ARRAY)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda folder: folder / "missing", ["missing", "no such"]),
        (lambda folder: folder, ["holds no .npz"]),
        (lambda folder: _written(folder / "x.txt", b"1 2"), ["x.txt", ".npz"]),
        (lambda folder: _written(folder / "x.npz", b"garbage"), ["x.npz", "cannot be read"]),
        (lambda folder: _written(folder / "x.npy", b""), ["x.npy", "cannot be read"]),
        (lambda folder: _mixed(folder), ["mixes"]),
        (lambda folder: _objects(folder / "o.npy"), ["o.npy", "Python objects"]),
    ],
)
def test_bad_files_are_named(tmp_path, make, words):
    path = make(tmp_path)
    with pytest.raises(DataError) as caught:
        list(find_feeds(path))
    for word in words:
        assert word in str(caught.value)


def _written(path, content):
    path.write_bytes(content)
    return path


def _mixed(folder):
    np.save(folder / "a.npy", ARRAY)
    np.savez(folder / "a.npz", x=ARRAY)
    return folder


def _objects(path):
    np.save(path, np.array([{"a": 1}], dtype=object), allow_pickle=True)
    return path
