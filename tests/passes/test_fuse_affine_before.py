"""Folding what stands before a convolution into it: exact, or not at all."""

from __future__ import annotations

import numpy as np
import pytest

from amct_onnx.passes.base import PassResult
from amct_onnx.passes.fuse_affine_before import FuseAffineBefore
from tests.models import normal, parse, run
from tests.passes.fusing import after, assert_same_numbers, data, operators, statistics

IMAGE, ANY = "float[2,4,7,7] x", "float[a,b,c,d] y"
CHAIN = "[bn] s = BatchNormalization(x, g, b, m, v)  [mul] t = Mul(k, s)  [sub] u = Sub(a, t)"
WEIGHTS = {"w": normal(6, 4, 3, 3), "k": normal(4, 1, 1, seed=3), "a": normal(1, 4, 1, 1), "c": normal(6, seed=1)}


@pytest.mark.parametrize("bias", ["", ", c"])
@pytest.mark.parametrize(
    ("attributes", "shape"),
    [
        ("", (6, 4, 3, 3)),
        ("<group = 2>", (6, 2, 3, 3)),
        ("<group = 4>", (8, 1, 3, 3)),
        ("<pads = [0, 0, 0, 0], strides = [2, 2], dilations = [2, 2]>", (6, 4, 3, 3)),
        ('<auto_pad = "VALID">', (6, 4, 2, 2)),
    ],
)
def test_a_chain_folds_completely(attributes: str, shape: tuple[int, ...], bias: str) -> None:
    weights = WEIGHTS | {"w": normal(*shape), "c": normal(shape[0], seed=1)} | statistics(4)
    model = parse(f"{CHAIN}  [conv] y = Conv{attributes}(u, w{bias})", IMAGE, ANY, weights)
    proto, result = after(model, FuseAffineBefore())
    assert operators(proto) == ["Conv"]
    assert proto.graph.node[0].input[0] == "x"
    assert result.merged == {"conv": ("bn", "mul", "sub", "conv")}
    assert_same_numbers(model, proto, data(2, 4, 7, 7))


PADDED = ["<pads = [1, 1, 1, 1]>", "<pads = [0, 0, 0, 1]>", '<auto_pad = "SAME_UPPER">', '<auto_pad = "SAME_LOWER">']


@pytest.mark.parametrize("attributes", PADDED)
def test_padding_takes_factors_but_no_shifts(attributes: str) -> None:
    """The border tells: there the shift would be added to zeros that it never reached."""
    nodes = f"[add] s = Add(x, a) [mul] t = Mul(s, k) [conv] y = Conv{attributes}(t, w, c)"
    model = parse(nodes, IMAGE, ANY, WEIGHTS)
    proto, result = after(model, FuseAffineBefore())
    assert operators(proto) == ["Add", "Conv"]
    assert result.merged == {"conv": ("mul", "conv")}
    assert_same_numbers(model, proto, data(2, 4, 7, 7))


def test_a_shift_right_before_a_padded_convolution_ends_the_chain() -> None:
    model = parse("s = Mul(x, k) t = Add(s, a) y = Conv<pads = [1, 1, 1, 1]>(t, w)", IMAGE, ANY, WEIGHTS)
    assert after(model, FuseAffineBefore())[1] == PassResult()


@pytest.mark.parametrize("operand", [(), (1,), (1, 1), (1, 1, 1), (4, 1, 1), (1, 4, 1, 1)])
def test_shapes_of_constants(operand: tuple[int, ...]) -> None:
    model = parse("s = Mul(x, k) y = Conv(s, w)", IMAGE, ANY, WEIGHTS | {"k": normal(*operand)})
    proto, _ = after(model, FuseAffineBefore())
    assert operators(proto) == ["Conv"]
    assert_same_numbers(model, proto, data(2, 4, 7, 7))


@pytest.mark.parametrize("operand", [(7,), (4, 7, 7), (2, 1, 1, 1), (1, 1, 7, 1)])
def test_constants_over_space_or_batch_stay(operand: tuple[int, ...]) -> None:
    model = parse("s = Mul(x, k) y = Conv(s, w)", IMAGE, ANY, WEIGHTS | {"k": normal(*operand)})
    assert after(model, FuseAffineBefore())[1] == PassResult()


@pytest.mark.parametrize(
    ("shape", "operand"), [("1,1,5,5", (4, 1, 1)), ("4,5,5", (1, 1, 1, 1)), ("a,b,5,5", (4, 1, 1))]
)
def test_constants_that_may_widen_the_data_stay(shape: str, operand: tuple[int, ...]) -> None:
    """One channel becomes four, three axes become four, or nobody knows."""
    model = parse("s = Mul(x, k) y = Conv(s, w)", f"float[{shape}] x", ANY, WEIGHTS | {"k": normal(*operand)})
    assert after(model, FuseAffineBefore())[1] == PassResult()


def test_channels_are_known_from_the_producer() -> None:
    nodes = "[one] s = Conv(x, w) r = Relu(s) t = Mul(r, k) y = Conv(t, w2)"
    weights = {"w": normal(5, 4, 1, 1), "w2": normal(3, 5, 1, 1, seed=1), "k": normal(5, 1, 1)}
    model = parse(nodes, IMAGE, ANY, weights)
    proto, _ = after(model, FuseAffineBefore())
    assert operators(proto) == ["Conv", "Relu", "Conv"]
    assert_same_numbers(model, proto, data(2, 4, 7, 7))


def test_what_has_other_readers_stays() -> None:
    model = parse(
        "s = Mul(x, k) t = Conv(s, w) z = Conv(s, w2) y = Add(t, z)", IMAGE, ANY, WEIGHTS | {"w2": normal(6, 4, 3, 3)}
    )
    assert after(model, FuseAffineBefore())[1] == PassResult()


def test_what_leaves_the_graph_stays() -> None:
    model = parse("s = Mul(x, k) y = Conv(s, w)", IMAGE, ANY + ", float[e,f,g,h] s", WEIGHTS)
    assert after(model, FuseAffineBefore())[1] == PassResult()


def test_what_a_body_reads_stays() -> None:
    text = """
        s = Mul(x, k)  t = Conv(s, w)
        y = If(q) <then_branch = p () => (float[a,b,d,e] r) { r = Neg(s) },
                  else_branch = o () => (float[a,b,d,e] u) { u = Neg(t) }>
    """
    model = parse(text, f"{IMAGE}, bool q", ANY, WEIGHTS)
    proto, result = after(model, FuseAffineBefore())
    assert result == PassResult()
    feed = data(2, 4, 7, 7) | {"q": np.array(True)}
    # Older releases of onnxruntime end the process when they optimize such a graph themselves.
    got, expected = (run(each, feed, optimized=False)[0] for each in (proto, model))
    np.testing.assert_array_equal(got, expected)


def test_a_shared_weight_stays() -> None:
    model = parse("s = Mul(x, k) t = Conv(s, w) z = Conv(x, w) y = Add(t, z)", IMAGE, ANY, WEIGHTS)
    assert after(model, FuseAffineBefore())[1] == PassResult()


def test_values_that_are_not_finite_stay() -> None:
    for value in (np.inf, np.nan):
        model = parse("s = Add(x, k) y = Conv(s, w)", IMAGE, ANY, WEIGHTS | {"k": np.array(value, np.float32)})
        assert after(model, FuseAffineBefore())[1] == PassResult()


@pytest.mark.parametrize(("skip", "merged"), [("conv", {}), ("sub", {}), ("bn", {"conv": ("mul", "sub", "conv")})])
def test_each_name_can_be_skipped(skip: str, merged: dict[str, tuple[str, ...]]) -> None:
    model = parse(f"{CHAIN}  [conv] y = Conv(u, w)", IMAGE, ANY, WEIGHTS | statistics(4))
    result = after(model, FuseAffineBefore(skip={skip}))[1]
    assert (result.merged, result.withheld) == (merged, ("conv",))
