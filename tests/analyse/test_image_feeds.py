"""Images as calibration feeds."""

from __future__ import annotations

import re
import sys

import numpy as np
import pytest

from amct_onnx.analyse.image_feeds import Color, ImageFeeds, ImageOptions, Layout
from amct_onnx.errors import DataError, UsageError

PIL = pytest.importorskip("PIL.Image")

PIXELS = np.array([[[0, 51, 102], [255, 204, 153]]], np.uint8)
"""One row of two RGB pixels, multiples of 51, so that scaled values are exact fifths."""


def save(path, pixels=PIXELS, **options):
    PIL.fromarray(pixels).save(path, **options)
    return path


def only(source, **options):
    (array,) = ImageFeeds(source, ImageOptions(**options))
    assert array.dtype == np.float32
    return array


def test_default_is_rgb_nchw_between_0_and_1(tmp_path) -> None:
    array = only(save(tmp_path / "a.png"))
    assert array.shape == (1, 3, 1, 2)
    np.testing.assert_allclose(array[0, :, 0, 0], [0, 0.2, 0.4], atol=1e-7)
    np.testing.assert_allclose(array[0, :, 0, 1], [1, 0.8, 0.6], atol=1e-7)


def test_mean_and_std_follow_scaling_in_the_order_of_the_channels(tmp_path) -> None:
    path = save(tmp_path / "a.png")
    mean, std = (0.5, 0.25, 0.1), (0.5, 0.25, 2.0)
    want = (np.array([0, 0.2, 0.4]) - mean) / std
    np.testing.assert_allclose(only(path, mean=mean, std=std)[0, :, 0, 0], want, atol=1e-6)
    want = (np.array([0.4, 0.2, 0]) - mean) / std
    np.testing.assert_allclose(only(path, mean=mean, std=std, color=Color.BGR)[0, :, 0, 0], want, atol=1e-6)
    np.testing.assert_allclose(only(path, mean=(0.5,), std=(0.5,))[0, :, 0, 1], [1, 0.6, 0.2], atol=1e-6)


def test_without_scaling(tmp_path) -> None:
    array = only(save(tmp_path / "a.png"), scale=False, mean=(51.0,), std=(2.0,), layout=Layout.NHWC)
    np.testing.assert_array_equal(array, (PIXELS.astype(np.float32) - 51)[None] / 2)


def test_gray(tmp_path) -> None:
    """ITU-R 601: 0.299 R + 0.587 G + 0.114 B, which of equal channels is that channel."""
    path = save(tmp_path / "a.png", np.array([[[51] * 3, [204] * 3]], np.uint8))
    for layout, shape in ((Layout.NCHW, (1, 1, 1, 2)), (Layout.NHWC, (1, 1, 2, 1))):
        array = only(path, color=Color.GRAY, layout=layout)
        assert array.shape == shape
        np.testing.assert_allclose(array.reshape(-1), [0.2, 0.8], atol=1e-7)
    (tmp_path / "b").mkdir()
    gray = save(tmp_path / "b" / "gray.png", np.array([[51, 204]], np.uint8))
    np.testing.assert_allclose(only(gray)[0, :, 0, 1], [0.8] * 3, atol=1e-7)


@pytest.mark.parametrize(
    ("size", "options", "shape"),
    [
        ((8, 6), {"resize": (4, 2)}, (2, 4)),
        ((8, 6), {"resize": 3}, (3, 4)),
        ((6, 9), {"resize": 4}, (6, 4)),
        ((8, 6), {"crop": (4, 2)}, (2, 4)),
        ((8, 6), {"resize": 4, "crop": (4, 4)}, (4, 4)),
    ],
)
def test_sizes(tmp_path, size, options, shape) -> None:
    width, height = size
    path = save(tmp_path / "a.png", np.zeros((height, width, 3), np.uint8))
    assert only(path, **options).shape[2:] == shape


def test_the_crop_is_the_middle(tmp_path) -> None:
    columns = np.tile(np.arange(6, dtype=np.uint8)[None, :, None], (4, 1, 3))
    array = only(save(tmp_path / "a.png", columns), crop=(2, 2), scale=False)
    np.testing.assert_array_equal(array[0, 0], [[2, 3], [2, 3]])


def test_a_constant_image_stays_constant_when_resized(tmp_path) -> None:
    path = save(tmp_path / "a.png", np.full((5, 7, 3), 51, np.uint8))
    np.testing.assert_allclose(only(path, resize=(3, 2)), 0.2, atol=1e-7)


def test_sixteen_bits_are_not_cut_off(tmp_path) -> None:
    path = save(tmp_path / "a.png", (np.array([[0, 51, 204, 255]]) * 257).astype(np.uint16))
    np.testing.assert_allclose(only(path)[0, :, 0], [[0, 0.2, 0.8, 1]] * 3, atol=1e-6)
    np.testing.assert_allclose(only(path, color=Color.GRAY)[0, 0, 0], [0, 0.2, 0.8, 1], atol=1e-6)


@pytest.mark.parametrize("ending", ["png", "jpg", "JPEG", "bmp", "webp"])
def test_kinds_of_files(tmp_path, ending: str) -> None:
    save(tmp_path / f"a.{ending}", np.full((4, 4, 3), 128, np.uint8))
    (tmp_path / "labels.txt").write_text("0")
    np.testing.assert_allclose(only(tmp_path), 128 / 255, atol=0.02)


def test_batches_in_name_order_and_what_is_left_over(tmp_path, caplog) -> None:
    for number in range(5):
        save(tmp_path / f"{number}.png", np.full((1, 1, 3), number * 51, np.uint8))
    feeds = ImageFeeds(tmp_path, ImageOptions(batch=2))
    assert len(feeds) == 2
    for _ in range(2):
        np.testing.assert_allclose([feed[:, 0, 0, 0] for feed in feeds], [[0, 0.2], [0.4, 0.6]], atol=1e-7)
    assert [path.name for path in feeds.files] == ["0.png", "1.png", "2.png", "3.png"]
    assert feeds.label(1) == f"{tmp_path / '2.png'} to 3.png"
    assert "the last 1 images do not fill a feed" in caplog.text


def test_images_of_different_size_in_one_feed(tmp_path) -> None:
    save(tmp_path / "a.png")
    save(tmp_path / "b.png", np.zeros((3, 4, 3), np.uint8))
    assert [feed.shape[2:] for feed in ImageFeeds(tmp_path)] == [(1, 2), (3, 4)]
    with pytest.raises(DataError, match=r"b\.png: 4x3 pixels, but a\.png in the same feed has 2x1; give all one size"):
        list(ImageFeeds(tmp_path, ImageOptions(batch=2)))


def test_images_that_cannot_be_used(tmp_path) -> None:
    with pytest.raises(DataError, match="the folder holds no image"):
        ImageFeeds(tmp_path)
    with pytest.raises(DataError, match="no such folder"):
        ImageFeeds(tmp_path / "nope")
    whole = save(tmp_path / "a.png", np.zeros((9, 9, 3), np.uint8)).read_bytes()
    with pytest.raises(DataError, match="1 images do not fill one feed of 2"):
        ImageFeeds(tmp_path, ImageOptions(batch=2))
    with pytest.raises(DataError, match=r"a\.png: 9x9 pixels are too few to cut out 10x4"):
        only(tmp_path, crop=(10, 4))
    for content in (b"", b"text", whole[: len(whole) // 2]):
        (tmp_path / "a.png").write_bytes(content)
        with pytest.raises(DataError, match=r"a\.png: cannot be read as an image"):
            only(tmp_path)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"mean": (0.1, 0.2)}, "mean has 2 numbers; RGB images take 1 or 3 numbers"),
        ({"std": (1.0,) * 3, "color": Color.GRAY}, "std has 3 numbers; GRAY images take 1 number"),
        ({"std": (1.0, 0.0, 1.0)}, "std holds 0"),
        ({"mean": (float("nan"),)}, "mean holds a number that is not finite"),
        ({"mean": (0.4, 123.675, 0.3)}, "mean holds 123.675, but pixels are scaled to [0, 1] first"),
        ({"batch": 0}, "batch is 0"),
        ({"resize": 0}, "resize is 0"),
        ({"crop": (4, 0)}, "crop is (4, 0)"),
    ],
)
def test_options_that_mean_nothing(options, words: str) -> None:
    with pytest.raises(UsageError, match=re.escape(words)):
        ImageOptions(**options)


def test_without_pillow(tmp_path, monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "PIL.Image", None)
    with pytest.raises(UsageError, match=re.escape("needs Pillow: pip install Pillow")):
        ImageFeeds(tmp_path)
