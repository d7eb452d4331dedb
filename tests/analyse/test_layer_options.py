"""Choices per layer arrive in the plan, and the plan in every form."""

import numpy as np
import pytest

from amct_onnx.analyse.algorithms import choose_weight
from amct_onnx.analyse.algorithms.uniform import half_precision
from amct_onnx.analyse.options import PlanOptions
from amct_onnx.analyse.planner import make_plan
from amct_onnx.config import ActivationAlgorithm, ActivationOptions, LayerOptions, WeightAlgorithm, WeightOptions
from amct_onnx.passes.quant_params import truncate_to_19_bits
from amct_onnx.rewrite import prepare
from tests.models import normal, parse

NET = "[a] r = Conv<pads = [1,1,1,1]>(x, v) [t] s = ConvTranspose(r, u) [b] y = Conv(s, w)"
WEIGHTS = {"v": normal(6, 4, 3, 3), "u": normal(6, 2, 2, 2, seed=1), "w": normal(3, 2, 1, 1, seed=2)}
FEEDS = [np.random.default_rng(i).standard_normal((1, 4, 6, 6)).astype(np.float32) for i in range(3)]


def plan(**options):
    model = parse(NET, "float[n,4,6,6] x", "float[n,c,h,w] y", WEIGHTS)
    return make_plan(prepare(model, None), FEEDS, PlanOptions(**options), sha256="0" * 64).record.layers


def test_each_layer_follows_its_own_choices():
    wide = LayerOptions(activation=ActivationOptions(bits=16, algorithm=ActivationAlgorithm.IFMR))
    narrow = LayerOptions(
        activation=ActivationOptions(symmetric=True),
        weight=WeightOptions(bits=4, algorithm=WeightAlgorithm.ARQ, per_channel=False),
    )
    layers = plan(layers={"t": wide, "b": narrow})
    types = {name: (entry.act_type, entry.wts_type, len(entry.scale_w)) for name, entry in layers.items()}
    assert types == {"a": ("INT8", "INT8", 6), "t": ("INT16", "INT8", 2), "b": ("INT8", "INT4", 1)}
    assert layers["b"].offset_d == 0
    assert layers["t"].scale_d < plan()["t"].scale_d / 200
    w = WEIGHTS["w"]
    expected = max(w.max() / 7, -w.min() / 8) if -w.min() <= w.max() else -w.min() / 8
    assert layers["b"].scale_w[0] == pytest.approx(expected, rel=1e-6)


def test_weights_of_a_transposed_convolution_have_a_scale_per_output_channel():
    options = WeightOptions(algorithm=WeightAlgorithm.ARQ)
    expected = choose_weight(options, WEIGHTS["u"], 1)
    got = plan(default=LayerOptions(weight=options))["t"].scale_w
    np.testing.assert_array_equal(np.array(got, np.float32), expected)


# AMCT's rounding of a scale to float16 precision, and its cut to 19 bits: value, rounded, cut.
REFERENCE = [
    (0.1, 0.0999755859375, 0.0999755859375),
    (1e-3, 0.00100040435791, 0.00099945068359375),
    (3.14159e-5, 3.14024655e-05, 3.14116478e-05),
    (1e-9, 1.00172670e-09, 9.99534677e-10),
    (70000, 69960.25, 69952),
]


@pytest.mark.parametrize(("value", "rounded", "cut"), REFERENCE)
def test_precision_of_float16_meets_the_reference(value, rounded, cut):
    assert half_precision(value) == pytest.approx(rounded, rel=1e-7)
    assert truncate_to_19_bits(np.array([value], np.float32))[0] == pytest.approx(cut, rel=1e-7)


def test_force_fp16_rounds_the_scales_of_the_plan():
    exact, rounded = plan(), plan(force_fp16=True)
    for name, entry in rounded.items():
        assert entry.scale_d == half_precision(exact[name].scale_d)
        assert entry.scale_d == float(np.float16(entry.scale_d))
