import numpy as np
import pytest

from amct_onnx.analyse.algorithms.weight import BIAS_LIMIT, arq, fit_bias, least_squares
from amct_onnx.graph.channels import plain
from amct_onnx.passes.quant_params import quantize_weight

W = np.array([[0.1, -0.25, 0.2, 0.05], [0, 0, 0, 0], [0.3, -0.1, 0.2, -0.3], [1.27, -0.5, 0.005, -1.0]], np.float32)


def test_arq_per_channel_meets_the_reference():
    scale = arq(W, 0)
    np.testing.assert_allclose(scale, np.array([0.25 / 128, 1.0, 0.3 / 127, 1.27 / 127], np.float32), rtol=1e-7)
    integers = quantize_weight(W, scale, plain(0, W.shape))
    expected = [[51, -128, 102, 26], [0, 0, 0, 0], [127, -42, 85, -127], [127, -50, 0, -100]]
    np.testing.assert_array_equal(integers, expected)


def test_arq_per_tensor_meets_the_reference():
    scale = arq(W, None)
    np.testing.assert_allclose(scale, [0.01], rtol=1e-6)
    expected = [[10, -25, 20, 5], [0, 0, 0, 0], [30, -10, 20, -30], [127, -50, 0, -100]]
    np.testing.assert_array_equal(quantize_weight(W, scale, plain(0, W.shape)), expected)


def test_arq_four_bits():
    np.testing.assert_allclose(arq(W, 0, bits=4), [0.25 / 8, 1.0, 0.3 / 7, 1.27 / 7], rtol=1e-6)


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_arq_on_any_axis(axis):
    w = np.random.default_rng(0).standard_normal((3, 4, 5)).astype(np.float32)
    rows = np.moveaxis(w, axis, 0).reshape(w.shape[axis], -1)
    expected = [max(row.max() / 127, -row.min() / 128) if -row.min() > row.max() else row.max() / 127 for row in rows]
    np.testing.assert_allclose(arq(w, axis), expected, rtol=1e-6)


def rounding_error(w, scale, axis):
    shape = [1] * w.ndim
    shape[axis] = -1
    step = scale.astype(np.float64).reshape(shape)
    others = tuple(i for i in range(w.ndim) if i != axis)
    return ((np.clip(np.rint(w / step), -128, 127) * step - w) ** 2).sum(axis=others)


@pytest.mark.parametrize("shape", [(5, 9), (4, 3, 5, 5), (3, 300), (2, 5000)])
@pytest.mark.parametrize("axis", [0, 1])
def test_least_squares_is_never_worse_than_covering_everything(shape, axis):
    w = np.random.default_rng(1).standard_normal(shape).astype(np.float32)
    covering = np.abs(np.moveaxis(w, axis, 0).reshape(shape[axis], -1)).max(axis=1) / 127
    got = least_squares(w, axis)
    assert got.shape == (shape[axis],)
    error, reference = rounding_error(w, got, axis), rounding_error(w, covering, axis)
    assert np.all(error <= reference * (1 + 1e-3))


def test_least_squares_cuts_off_a_lone_outlier():
    w = np.random.default_rng(1).uniform(-1, 1, (1, 40000)).astype(np.float32)
    w[0, 0] = 1.1
    covering = np.array([1.1 / 127])
    assert rounding_error(w, least_squares(w, 0), 0) < 0.95 * rounding_error(w, covering, 0)


def test_least_squares_handles_zero_filters_and_empty_weights():
    w = np.array([[0.0, 0.0], [1.0, -0.5]], np.float32)
    assert least_squares(w, 0)[0] == 1.0
    assert least_squares(np.zeros((3, 0), np.float32), 0).tolist() == [1.0, 1.0, 1.0]


def test_tiny_weights_keep_their_own_scale():
    w = np.full((1, 3), 1e-9, np.float32)
    np.testing.assert_array_equal(quantize_weight(w, arq(w, 0), plain(0, w.shape)), [[127, 127, 127]])


def test_bias_that_would_overflow_raises_its_channels_scale_only():
    scale = np.array([1e-6, 1e-6], np.float32)
    fitted = fit_bias(scale, np.array([0.001, 5000.0]), 1e-3, np.array([False, False]))
    assert fitted[0] == scale[0]
    assert abs(5000.0 / (float(fitted[1]) * 1e-3)) <= BIAS_LIMIT * 1.0001


def test_filter_without_weights_serves_its_bias():
    fitted = fit_bias(np.ones(2, np.float32), np.array([0.37, 0.0]), 0.02, np.array([True, True]))
    unit = float(fitted[0]) * 0.02
    assert round(0.37 / unit) * unit == pytest.approx(0.37, rel=1e-6)
    assert fitted[1] == 1.0


def test_per_tensor_scale_fits_the_largest_bias():
    fitted = fit_bias(np.array([1e-7], np.float32), np.array([1.0, -9000.0]), 1e-3, np.array([False]))
    assert 9000.0 / (float(fitted[0]) * 1e-3) <= BIAS_LIMIT * 1.0001


def test_layer_without_bias_keeps_its_scale():
    scale = np.array([0.5], np.float32)
    assert fit_bias(scale, None, 1.0, np.array([False])) is scale
