"""Activation ranges: published reference values, and independent computations in numpy."""

import itertools

import numpy as np
import pytest

from amct_onnx.analyse.algorithms import Bounds, choose_activation
from amct_onnx.analyse.algorithms.activation import ifmr, least_squares, min_max, percentile_range
from amct_onnx.analyse.algorithms.hfmg import hfmg
from amct_onnx.analyse.algorithms.uniform import fit_into, scale_and_offset
from amct_onnx.analyse.statistics import EXACT_LIMIT, TensorStatistics
from amct_onnx.config import ActivationAlgorithm, ActivationOptions

STEPS = (np.arange(1000) * 7919) % 1000
X1 = (STEPS / 250 - 1).astype(np.float32)
X2 = ((STEPS / 500 - 1) ** 3 * 4).astype(np.float32)
X3 = np.maximum(X2, 0)

# AMCT's IFMR with default parameters on these data: data, bits, symmetric, scale, offset.
REFERENCE = [
    (X1, 8, False, 0.01567058824, -64),
    (X1, 8, True, 0.02359055169, 0),
    (X1, 16, False, 6.09750532e-05, -16368),
    (X1, 16, True, 9.14334523e-05, 0),
    (X2, 8, False, 0.03143454343, -1),
    (X2, 8, True, 0.03093750030, 0),
    (X2, 16, False, 1.217066892e-04, 98),
    (X2, 16, True, 1.245117164e-04, 0),
    (X3, 8, False, 0.01574826986, -128),
    (X3, 8, True, 0.03130746633, 0),
    (X3, 16, False, 6.12773147e-05, -32768),
    (X3, 16, True, 1.213430587e-04, 0),
]
REFERENCE_99 = [
    (X1, False, 0.01562039275, -66),
    (X1, True, 0.02354015782, 0),
    (X2, False, 0.03065163083, -4),
    (X2, True, 0.03136825189, 0),
]

# AMCT's HFMG: data, bins, scale and offset asymmetric, scale symmetric.
REFERENCE_HFMG = [
    (X1, 1024, 0.01565528475, -64, 0.02355982363),
    (X1, 4096, 0.01566676237, -64, 0.02358287014),
    (X2, 1024, 0.03124807402, 0, 0.03125),
    (X2, 4096, 0.03127098456, 0, 0.03125),
    (X3, 1024, 0.01557711791, -128, 0.03127688915),
    (X3, 4096, 0.01558853872, -128, 0.03129982203),
]


def distribution(values):
    statistics = TensorStatistics()
    statistics.update(values)
    return statistics.distribution()


def quantized_error(values, scale, offset, bits):
    """Independent: quantize, dequantize, subtract."""
    qmin, qmax = -(2 ** (bits - 1)), 2 ** (bits - 1) - 1
    q = np.clip(np.rint(values.astype(np.float64) / scale) + offset, qmin, qmax)
    return np.sum(((q - offset) * scale - values) ** 2)


@pytest.mark.parametrize(("values", "bits", "symmetric", "scale", "offset"), REFERENCE)
def test_ifmr_meets_the_reference(values, bits, symmetric, scale, offset):
    got_scale, got_offset = ifmr(distribution(values), bits=bits, symmetric=symmetric)
    assert abs(got_scale / scale - 1) <= 0.01
    if bits == 16:
        loss = quantized_error(values, got_scale, got_offset, bits)
        assert loss <= 1.01 * quantized_error(values, scale, offset, bits)
    else:
        assert abs(got_offset - offset) <= 1


@pytest.mark.parametrize(("values", "symmetric", "scale", "offset"), REFERENCE_99)
def test_ifmr_with_percentiles_meets_the_reference(values, symmetric, scale, offset):
    got = ifmr(distribution(values), bits=8, symmetric=symmetric, max_percentile=0.99, min_percentile=0.99)
    assert abs(got[0] / scale - 1) <= 0.01
    assert abs(got[1] - offset) <= 1


@pytest.mark.parametrize(("values", "bins", "scale", "offset", "symmetric_scale"), REFERENCE_HFMG)
def test_hfmg_meets_the_reference(values, bins, scale, offset, symmetric_scale):
    got = hfmg(distribution(values), bits=8, symmetric=False, num_of_bins=bins)
    assert got[0] == pytest.approx(scale, rel=1e-7)
    assert got[1] == offset
    got = hfmg(distribution(values), bits=8, symmetric=True, num_of_bins=bins)
    assert got == (pytest.approx(symmetric_scale, rel=1e-7), 0)


@pytest.mark.parametrize("bits", [8, 16])
@pytest.mark.parametrize("symmetric", [False, True])
@pytest.mark.parametrize(
    "values", [[0, 1], [-1, 0, 1], [-0.11, -0.03, 0.03, 0.04, 0.06, 0.09, 0.12], [-5, -4, 3, 3], [0.5, 0.7, 1]]
)
def test_hfmg_keeps_the_range_of_few_distinct_values(values, symmetric, bits):
    """None of them is an outlier, so each is worth its place."""
    array = np.repeat(np.float32(values), 50)
    scale, offset = hfmg(distribution(array), bits=bits, symmetric=symmetric)
    half = 2 ** (bits - 1)
    got = (np.clip(np.rint(array / scale) + offset, -half, half - 1) - offset) * scale
    np.testing.assert_allclose(got, array, atol=0.01 * np.abs(array).max())


def test_hfmg_cuts_far_outliers_off():
    values = np.append(np.random.default_rng(0).standard_normal(100_000), [200.0]).astype(np.float32)
    scale, offset = hfmg(distribution(values), bits=8, symmetric=False)
    assert (127 - offset) * scale < 60
    covering = scale_and_offset(float(values.min()), 200.0, bits=8, symmetric=False)
    assert quantized_error(values[:-1], scale, offset, 8) < quantized_error(values[:-1], *covering, 8) / 4


@pytest.mark.parametrize("algorithm", list(ActivationAlgorithm))
def test_all_zero_data_gives_a_usable_quantizer(algorithm):
    zeros = distribution(np.zeros(10, np.float32))
    assert choose_activation(ActivationOptions(algorithm=algorithm), zeros) == (1.0, -128)
    assert choose_activation(ActivationOptions(algorithm=algorithm, symmetric=True), zeros) == (1.0, 0)


def test_min_max_covers_the_extremes():
    scale, offset = min_max(distribution(np.array([-1.0, 0.25, 3.0], np.float32)), bits=8, symmetric=False)
    assert scale == np.float32(4 / 255)
    assert offset == round(-128 + 1 / (4 / 255))


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [(-1.0, 2.0, (2 / 127, 0)), (-2.0, 1.0, (2 / 128, 0)), (0.0, 0.0, (1.0, 0)), (0.5, 1.0, (1 / 127, 0))],
)
def test_symmetric_divisor_follows_the_larger_side(low, high, expected):
    scale, offset = scale_and_offset(low, high, bits=8, symmetric=True)
    assert (scale, offset) == (float(np.float32(expected[0])), expected[1])


@pytest.mark.parametrize("share", [0.9, 0.99, 0.999, 0.999999, 1.0])
def test_percentiles_are_the_kth_values(share):
    values = np.random.default_rng(0).standard_normal(5000).astype(np.float32)
    k = 1 if 1 - share < np.finfo(np.float32).eps else max(1, 5000 - int(share * 5000))
    ordered = np.sort(values)
    assert percentile_range(distribution(values), high_share=share, low_share=share) == (ordered[k - 1], ordered[-k])


DATA = {
    "uniform": lambda rng: rng.uniform(-1, 3, 4000),
    "normal": lambda rng: rng.standard_normal(4000),
    "long tail": lambda rng: rng.standard_normal(4000) ** 3,
    "outlier": lambda rng: np.append(rng.standard_normal(4000), [90.0, -40.0]),
    "relu": lambda rng: np.maximum(rng.standard_normal(4000) ** 3, 0),
    "negative": lambda rng: -np.abs(rng.standard_normal(4000)),
    "two values": lambda rng: rng.choice([0.0, 7.0], 4000),
}


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("symmetric", [False, True])
@pytest.mark.parametrize("name", DATA)
def test_least_squares_is_near_the_best_of_an_exhaustive_search(name, symmetric, bits):
    values = DATA[name](np.random.default_rng(1)).astype(np.float32)
    seen = distribution(values)
    got = quantized_error(values, *least_squares(seen, bits=bits, symmetric=symmetric), bits)
    shares = np.linspace(0.02, 1, 60)
    grid = [(share, share) for share in shares] if symmetric else itertools.product(shares, shares)
    best = min(
        quantized_error(values, *scale_and_offset(seen.low * a, seen.high * b, bits=bits, symmetric=symmetric), bits)
        for a, b in grid
    )
    assert got <= 1.05 * best + 1e-9
    assert got <= quantized_error(values, *min_max(seen, bits=bits, symmetric=symmetric), bits) + 1e-9


def test_histogram_and_exact_values_choose_alike():
    values = (np.random.default_rng(2).standard_normal(EXACT_LIMIT) ** 3).astype(np.float32)
    exact = distribution(values)
    binned = distribution(np.concatenate([values, values[:1000]]))
    assert exact.values.size > 10_000 > binned.values.size
    for function in (least_squares, ifmr, min_max):
        assert function(binned, bits=8, symmetric=False)[0] == pytest.approx(
            function(exact, bits=8, symmetric=False)[0], rel=0.03
        )


@pytest.mark.parametrize(
    ("low", "high"), [(0.0, 6.0), (0.0, np.inf), (-1.0, 1.0), (-0.3, 2.7), (-np.inf, 0.0), (-3.0, 0.0), (0.0, 1.0)]
)
@pytest.mark.parametrize("algorithm", list(ActivationAlgorithm))
def test_ranges_never_reach_beyond_what_the_producer_emits(algorithm, low, high):
    values = np.clip(np.random.default_rng(4).standard_normal(3000) * 4, low, high).astype(np.float32)
    scale, offset = choose_activation(
        ActivationOptions(algorithm=algorithm), distribution(values), bounds=Bounds(low, high)
    )
    step = np.float32(scale)
    assert step * np.float32(-128 - offset) >= low
    assert step * np.float32(127 - offset) <= high
    # and the step is hardly coarser than the range needs
    span = min(high, values.max()) - max(low, values.min())
    assert scale <= 1.35 * span / 255


def test_bounds_that_are_not_reached_change_nothing():
    assert fit_into(0.01, -10, Bounds(-5.0, 5.0), bits=8) == (0.01, -10)


@pytest.mark.parametrize("bounds", [(-3.0, 6.0), (-6.0, 1e-8), (-1e-8, 6.0), (-0.5, 0.5), (-3.0, 0.0), (0.0, 0.0)])
@pytest.mark.parametrize("seen", [(-6.0, -6.0), (-6.0, 6.0), (0.0, 0.0), (6.0, 6.0)])
@pytest.mark.parametrize("algorithm", list(ActivationAlgorithm))
def test_narrowed_quantizers_are_quantizers(algorithm, seen, bounds):
    values = np.clip(np.linspace(*seen, 99), *bounds).astype(np.float32)
    scale, offset = choose_activation(
        ActivationOptions(algorithm=algorithm), distribution(values), bounds=Bounds(*bounds)
    )
    assert scale > 0
    assert -128 <= offset <= 127
    integers = np.clip(np.rint(values / scale) + offset, -128, 127)
    assert np.abs((integers - offset) * scale - values).max() <= 0.02 * np.abs(values).max() + 1e-7
