"""Data and weights at the edges, in every form: as good as 8 bits allow, or refused with a reason."""

import numpy as np
import pytest
from onnx import helper
from small_models import FEED, conv_net, model, random, value

import amct_onnx
from amct_onnx.api.trial import signal_to_noise
from amct_onnx.runtime import fetch, open_session
from amct_onnx.runtime.simulator import open_simulator


def assert_sound(net, feeds, least=28.0, layers=2, **options):
    """Every form is near the float model, on what is finite there, and the simulator agrees with fake-quant."""
    result = amct_onnx.quantize(net, feeds, trial=False, **options)
    assert len(result.report.layers) == layers
    source = open_session(net)
    names = [output.name for output in source.get_outputs()]
    sessions = {form: open_session(result.model(form), optimize=False) for form in ("fake_quant", "qdq")}
    simulator = open_simulator(result.model("ascend"))
    for feed in feeds:
        wanted = fetch(source, names, feed)
        got = {form: fetch(session, names, feed) for form, session in sessions.items()}
        for form, arrays in got.items():
            finite = [np.where(np.isfinite(want), array, want) for want, array in zip(wanted, arrays, strict=True)]
            assert signal_to_noise(wanted, finite) >= least, form
        assert signal_to_noise(got["fake_quant"], fetch(simulator, names, feed)) > 100
    return result


def feed(change):
    values = FEED.copy()
    change(values)
    return {"x": values}


def put(place, number):
    def change(values):
        values[place] = number

    return change


DEAD = np.array([1, 1, 0, 1], np.float32).reshape(4, 1, 1, 1)
FILTERS = random(4, 3, 3, 3) * np.float32(0.3)


@pytest.mark.parametrize("dmq", [None, 0.5])
@pytest.mark.parametrize(
    "change",
    [
        put((), 5),
        put((), -3),
        put((slice(None), 1), 0),
        put((slice(None), slice(1, None)), 0),
        put((0, 0, 0, 0), 1e6),
        lambda values: np.multiply(values, 1e6, out=values),
    ],
    ids=["constant", "negative", "dead channel", "one live channel", "outlier", "large"],
)
def test_odd_ranges(change, dmq):
    assert_sound(conv_net(), [feed(change)], dmq=dmq)


@pytest.mark.parametrize("act", ["mse", "minmax", "ifmr", "hfmg", "percentile"])
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_is_left_out(bad, act, caplog):
    plain = amct_onnx.quantize(conv_net(), [FEED], act=act, trial=False)
    spoiled = amct_onnx.quantize(conv_net(), [feed(put((0, 0, 0, 0), bad))], act=act, trial=False)
    for name, entry in plain.record.layers.items():
        assert spoiled.record.layers[name].scale_d == pytest.approx(entry.scale_d, rel=0.05)
    assert "not finite" in caplog.text


def test_a_feed_of_nothing_finite_among_others_changes_no_scale():
    plain = amct_onnx.quantize(conv_net(), [FEED, FEED], trial=False)
    spoiled = amct_onnx.quantize(conv_net(), [FEED, np.full_like(FEED, np.nan), FEED], trial=False)
    for name, entry in plain.record.layers.items():
        assert spoiled.record.layers[name].scale_d == pytest.approx(entry.scale_d)


@pytest.mark.parametrize("bias", [None, np.array([0.1, 0.2, 0.3, 0.4], np.float32)])
@pytest.mark.parametrize("factor", [0, 1e-40, 1e-12, 1e8])
def test_one_filter_unlike_the_rest(factor, bias):
    weight = np.where(DEAD == 0, FILTERS.astype(np.float64) * factor, FILTERS).astype(np.float32)
    assert_sound(conv_net(weight=weight, bias=bias), [{"x": FEED}])


def test_a_filter_of_zeros_gives_its_shift_exactly():
    bias = np.array([0.5, -0.5, 2.0, 0.25], np.float32)
    nodes = [helper.make_node("Conv", ["x", "w", "b"], ["y"], name="conv")]
    constants = {"w": (FILTERS * DEAD).astype(np.float32), "b": bias}
    net = model(nodes, [value("x", ["N", 3, 8, 8])], [value("y", None)], constants)
    result = assert_sound(net, [{"x": FEED}], layers=1)
    (got,) = fetch(open_session(result.model("fake_quant")), ["y"], {"x": FEED})
    np.testing.assert_allclose(got[:, 2], 2.0, rtol=1e-3)


def test_one_bias_under_two_scales():
    nodes = [
        helper.make_node("Conv", ["x", "w", "b"], ["c"], name="first", pads=[1] * 4),
        helper.make_node("Relu", ["c"], ["r"], name="relu"),
        helper.make_node("Conv", ["r", "w2", "b"], ["y"], name="second"),
    ]
    constants = {"w": FILTERS, "w2": random(4, 4, 3, 3, seed=1) * np.float32(100), "b": random(4, seed=2)}
    assert_sound(model(nodes, [value("x", ["N", 3, 8, 8])], [value("y", None)], constants), [{"x": FEED}])


def test_one_weight_under_inputs_a_thousand_times_apart():
    nodes = [
        helper.make_node("Mul", ["x", "k"], ["d"], name="scaled"),
        helper.make_node("Conv", ["x", "w"], ["y"], name="first"),
        helper.make_node("Conv", ["d", "w"], ["z"], name="second"),
    ]
    constants = {"w": FILTERS, "k": np.float32(1000)}
    net = model(nodes, [value("x", ["N", 3, 8, 8])], [value("y", None), value("z", None)], constants)
    result = assert_sound(net, [{"x": FEED}])
    scales = {name: entry.scale_d for name, entry in result.record.layers.items()}
    assert scales["second"] == pytest.approx(1000 * scales["first"], rel=1e-4)


def attention(mask=None):
    """One head; `mask` is constant, or an input ``mask``."""
    constants = {name: random(8, 8, seed=seed) * np.float32(0.4) for seed, name in enumerate("qkvo")}
    nodes = [helper.make_node("MatMul", ["x", name], [f"x{name}"], name=name) for name in "qkv"]
    nodes += [
        helper.make_node("Transpose", ["xk"], ["kt"], perm=[0, 2, 1]),
        helper.make_node("MatMul", ["xq", "kt"], ["s"], name="scores"),
        helper.make_node("Add", ["s", "mask"], ["m"], name="masked"),
        helper.make_node("Softmax", ["m"], ["p"], axis=-1),
        helper.make_node("MatMul", ["p", "xv"], ["a"], name="mixed"),
        helper.make_node("MatMul", ["a", "o"], ["y"], name="o"),
    ]
    inputs = [value("x", ["N", 6, 8])]
    if mask is None:
        inputs.append(value("mask", ["N", 1, 6]))
    else:
        constants["mask"] = mask
    return model(nodes, inputs, [value("y", None)], constants)


ROWS = random(2, 6, 8, seed=3)
LOWEST = np.finfo(np.float32).min


@pytest.mark.parametrize("low", [-np.inf, LOWEST, -1e9, -1e4])
def test_padding_masks_of_attention(low):
    mask = np.zeros((2, 1, 6), np.float32)
    mask[:, :, 4:] = low
    assert_sound(attention(), [{"x": ROWS, "mask": mask}], layers=4, least=25)


@pytest.mark.parametrize("low", [-np.inf, LOWEST, -1e4])
def test_causal_masks_that_are_constant(low):
    mask = np.triu(np.full((1, 6, 6), low, np.float32), 1)
    assert_sound(attention(mask), [{"x": ROWS}], layers=4, least=25)


def test_a_row_that_is_masked_altogether():
    """Its softmax is NaN in float, and stays so; the other rows are none the worse."""
    mask = np.zeros((2, 1, 6), np.float32)
    mask[1] = -np.inf
    assert_sound(attention(), [{"x": ROWS, "mask": mask}], layers=4, least=25)
