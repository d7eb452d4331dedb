import numpy as np
import pytest

import amct_onnx
from amct_onnx import demo
from amct_onnx.analyse.statistics import EXACT_LIMIT, TensorStatistics
from amct_onnx.errors import DataError

IMAGES = demo.load().calibration_images
MODEL = demo.load().model_path


def quantize(data, **options):
    return amct_onnx.quantize(MODEL, data, trial=False, **options)


@pytest.fixture(scope="module")
def whole():
    return quantize([IMAGES])


def test_statistics_survive_the_file_and_serve_another_method(whole, tmp_path):
    amct_onnx.save_calibration(whole.calibration, tmp_path / "s.npz")
    loaded = amct_onnx.load_calibration(tmp_path / "s.npz")
    assert quantize(loaded).record == whole.record
    assert quantize(loaded, act="ifmr").record == quantize([IMAGES], act="ifmr").record


def test_same_statistics_same_bytes(whole, tmp_path):
    for name in ("a.npz", "b.npz"):
        amct_onnx.save_calibration(whole.calibration, tmp_path / name)
    assert (tmp_path / "a.npz").read_bytes() == (tmp_path / "b.npz").read_bytes()


def test_shards_join_to_the_whole(whole):
    shards = [quantize([part]).calibration for part in np.split(IMAGES, [30, 31, 130])]
    joined = amct_onnx.merge_calibrations(shards)
    assert joined.feeds == 4
    for name, seen in whole.calibration.statistics.items():
        part = joined.statistics[name]
        if name == demo.INPUT_NAME:
            # The runtime may compute other tensors slightly differently for another batch size.
            assert (part.low, part.high, part.count) == (seen.low, seen.high, seen.count)
            np.testing.assert_array_equal(part.distribution().counts, seen.distribution().counts)
        assert part.count == seen.count


@pytest.mark.parametrize(
    "sizes", [(10, 20), (EXACT_LIMIT, 5), (5, EXACT_LIMIT * 2), (EXACT_LIMIT * 2, EXACT_LIMIT * 3)]
)
@pytest.mark.parametrize("factors", [(1, 1), (0.001, 40), (40, 0.001), (0, 1), (0, 1e-4)])
def test_merging_equals_one_walk(sizes, factors):
    rng = np.random.default_rng(0)
    arrays = [(rng.standard_normal(n) * f).astype(np.float32) for n, f in zip(sizes, factors, strict=True)]
    one = TensorStatistics()
    parts = []
    for array in arrays:
        one.update(array)
        parts.append(TensorStatistics())
        parts[-1].update(array)
    merged = TensorStatistics()
    for part in parts:
        merged.merge(part)
    assert (merged.low, merged.high, merged.count) == (one.low, one.high, one.count)
    np.testing.assert_array_equal(merged.distribution().counts, one.distribution().counts)
    np.testing.assert_array_equal(merged.distribution().values, one.distribution().values)


def test_statistics_of_another_model_or_too_few_are_refused(whole, tmp_path):
    import dataclasses

    other = dataclasses.replace(whole.calibration, source_sha256="0" * 64)
    with pytest.raises(DataError, match="another model"):
        quantize(other)
    with pytest.raises(DataError, match="different models"):
        amct_onnx.merge_calibrations([whole.calibration, other])
    with pytest.raises(DataError, match="lack 1 of"):
        quantize(quantize([IMAGES[:5]], formats=["ascend"]).calibration)
    with pytest.raises(DataError, match="extremes only"):
        quantize(quantize([IMAGES[:5]], act="minmax").calibration)
    with pytest.raises(DataError, match="no statistics to join"):
        amct_onnx.merge_calibrations([])


@pytest.mark.parametrize("content", [b"", b"garbage", None])
def test_bad_files_are_named(tmp_path, content):
    path = tmp_path / "s.npz"
    if content is None:
        np.savez(path, x=np.zeros(3))
    else:
        path.write_bytes(content)
    with pytest.raises(DataError, match=r"s\.npz"):
        amct_onnx.load_calibration(path)


def test_a_damaged_archive_is_named(whole, tmp_path):
    path = tmp_path / "s.npz"
    amct_onnx.save_calibration(whole.calibration, path)
    data = path.read_bytes()
    # Compressed data of the first member, behind its name: no way to begin a block.
    start = data.index(b"header.npy") + len(b"header.npy") + 20
    path.write_bytes(data[:start] + b"\xff" * 20 + data[start + 20 :])
    with pytest.raises(DataError, match=r"s\.npz: these are no statistics"):
        amct_onnx.load_calibration(path)


def test_missing_file_is_named(tmp_path):
    with pytest.raises(DataError, match=r"gone\.npz"):
        amct_onnx.load_calibration(tmp_path / "gone.npz")
