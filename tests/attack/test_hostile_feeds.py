"""Feeds of every wrong kind, from memory and from files."""

import io
import zipfile

import numpy as np
import pytest
from numpy.lib import format as npy
from small_models import FEED, conv_net

import amct_onnx
from amct_onnx.analyse.feed_files import find_feeds
from amct_onnx.errors import DataError


@pytest.mark.parametrize(
    ("feed", "words"),
    [
        (np.full(FEED.shape, 1e300), "beyond the range"),
        (FEED > 0, "bool"),
        (FEED.astype(complex), "complex"),
        (FEED.astype(np.int32), "int32"),
        (FEED.astype(object), "Python objects"),
        ({"x": None}, "NoneType"),
        ({"x": [[1.0], [2.0, 3.0]]}, "equal rows"),
        ({}, "'x'"),
        ({"x": FEED, "z": FEED}, "'z'"),
    ],
)
def test_arrays_that_do_not_fit(feed, words):
    with pytest.raises(DataError, match=f"feed 1.*{words}"):
        amct_onnx.quantize(conv_net(), [FEED, feed])


def test_empty_batches_among_full_ones_change_nothing():
    full = amct_onnx.quantize(conv_net(), [FEED], trial=False)
    mixed = amct_onnx.quantize(conv_net(), [FEED[:0], FEED, FEED[:0]])
    assert mixed.record == full.record


def test_what_a_generator_raises_is_left_alone():
    def feeds():
        yield FEED
        raise RuntimeError("the disk is gone")

    with pytest.raises(RuntimeError, match="disk is gone"):
        amct_onnx.quantize(conv_net(), feeds())


def test_byte_order_and_memory_order_do_not_matter():
    plain = amct_onnx.quantize(conv_net(), [FEED], trial=False)
    odd = amct_onnx.quantize(conv_net(), [np.asfortranarray(FEED.astype(">f4"))], trial=False)
    assert odd.record == plain.record


def archive(**members):
    stream = io.BytesIO()
    np.savez(stream, **members)
    return stream.getvalue()


def zipped(name, content):
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as opened:
        opened.writestr(name, content)
    return stream.getvalue()


def array_file(array, **options):
    stream = io.BytesIO()
    np.save(stream, array, **options)
    return stream.getvalue()


def huge_claim():
    stream = io.BytesIO()
    npy.write_array_header_1_0(stream, {"descr": "<f4", "fortran_order": False, "shape": (2**50, 3)})
    return stream.getvalue()


def flipped(data, place):
    return data[:place] + bytes([data[place] ^ 0xFF]) + data[place + 1 :]


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("a.npz", b"", "empty"),
        ("a.npz", b"\x07garbage" * 40, "neither an array nor an archive"),
        ("a.npz", archive(x=FEED)[:-5], "zip"),
        ("a.npz", flipped(archive(x=FEED), 500), "CRC"),
        ("a.npz", archive(x=np.array([FEED, None], dtype=object)), "Python objects"),
        ("a.npz", zipped("x", "no array"), "'x' is not an array"),
        ("a.npz", archive(), "'x'"),
        ("a.npz", archive(y=FEED), "'x'"),
        ("a.npy", array_file(FEED.astype(object), allow_pickle=True), "Python objects"),
        ("a.npy", array_file(FEED)[:300], "read"),
        ("a.npy", array_file(FEED).replace(b"(2, 3, 8, 8)", b"(2,3,8,10**9"), "cannot be read"),
        ("a.npy", huge_claim(), "memory"),
    ],
)
def test_damaged_files_are_named(tmp_path, name, content, words):
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(DataError, match=words) as caught:
        amct_onnx.quantize(conv_net(), find_feeds(tmp_path))
    assert str(path) in str(caught.value)


def test_a_folder_in_the_place_of_a_feed(tmp_path):
    (tmp_path / "a.npz").mkdir()
    with pytest.raises(DataError, match=r"a\.npz.*directory"):
        amct_onnx.quantize(conv_net(), find_feeds(tmp_path))
