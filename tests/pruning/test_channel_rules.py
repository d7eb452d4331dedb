"""Channels are followed through every structure: dead ones go without a trace, and the same channels go everywhere."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import onnx
import pytest
from onnx import ModelProto, numpy_helper

from amct_onnx.analyse.shapes import sample_feed, tensor_shapes
from amct_onnx.passes.pruning.adjust import GroupedWeight
from amct_onnx.passes.pruning.groups import Group
from amct_onnx.rewrite.pruning import Prunable, open_prunable, prune_model, prune_records, units_of_records
from tests.models import Array, normal, parse, run

IMAGE = "float[n,3,8,8] x"


@dataclass(frozen=True)
class Case:
    """A graph in which the channels of layer `first` can go.

    Attributes:
        text: its nodes; names in brackets.
        weights: initializers.
        layers: names of the layers that share the group with `first`.
    """

    text: str
    weights: dict[str, Array]
    layers: tuple[str, ...] = ("first",)
    inputs: str = IMAGE
    opset: int = 17
    outputs: str = "float[a,b,c,d] y"
    extra: dict[str, Array] = field(default_factory=dict)


def conv(out: int, inner: int, kernel: int = 1, seed: int = 0) -> Array:
    return normal(out, inner, kernel, kernel, seed=seed)


W = {"w": conv(8, 3, 3), "v": conv(4, 8, seed=1)}
ENDS = "[last] y = Conv(t, v)"


def ints(*values: int) -> Array:
    return np.array(values, np.int64)


AT = {"at0": np.array(0, np.int64), "at1": np.array(1, np.int64)}
"""Indices, and vectors of one number."""
AT |= {name: ints(value) for value, name in enumerate(("zero", "one", "two", "three", "four"))}

LSTM = {"W": normal(1, 24, 5, seed=100), "R": normal(1, 24, 6, seed=101), "B": normal(1, 48, seed=102)}

CASES = {
    "plain": Case(f"[first] s = Conv(x, w, b) t = Relu(s) {ENDS}", {**W, "b": normal(8, seed=2)}),
    "batch normalization": Case(
        f"[first] s = Conv(x, w) r = BatchNormalization(s, g, b, m, u) t = Relu(r) {ENDS}",
        {**W, "g": normal(8, seed=3), "b": normal(8, seed=4), "m": normal(8, seed=5), "u": np.ones(8, np.float32)},
    ),
    "residual": Case(
        f"[first] s = Conv(x, w) [second] r = Conv(x, w2) q = Add(s, r) t = Relu(q) {ENDS}",
        {**W, "w2": conv(8, 3, 3, seed=6)},
        ("first", "second"),
    ),
    "squeeze and excite": Case(
        """[first] s = Conv(x, w) p = GlobalAveragePool(s) [down] d = Conv(p, wd) a = Relu(d) [up] e = Conv(a, wu)
           g = Sigmoid(e) t = Mul(s, g) """
        + ENDS,
        {**W, "wd": conv(4, 8, seed=7), "wu": conv(8, 4, seed=8)},
        ("first", "up"),
    ),
    "constant per channel": Case(
        f"[first] s = Conv(x, w) r = Mul(s, g) t = Add(c, r) {ENDS}",
        {**W, "g": normal(8, 1, 1, seed=9), "c": normal(1, 8, 1, 1, seed=10)},
    ),
    "depthwise": Case(
        f"[first] s = Conv(x, w) r = Relu(s) [depth] t = Conv<group = 8, pads = [1,1,1,1]>(r, k, b) {ENDS}",
        {**W, "k": conv(8, 1, 3, seed=11), "b": normal(8, seed=12)},
    ),
    "depthwise with multiplier 2": Case(
        "[first] s = Conv(x, w) r = Relu(s) [depth] t = Conv<group = 8>(r, k) [last] y = Conv(t, v2)",
        {"w": W["w"], "k": conv(16, 1, 3, seed=13), "v2": conv(4, 16, seed=14)},
    ),
    "one input channel is no depthwise convolution": Case(
        "g = Slice(x, zero, one, axis) [first] t = Conv(g, w1) [last] y = Conv(t, v)",
        {"w1": conv(8, 1, 3, seed=15), "v": W["v"], "zero": ints(0), "one": ints(1), "axis": ints(1)},
    ),
    "transposed convolution": Case(
        "[first] s = Conv(x, w) [up] t = ConvTranspose<strides = [2,2]>(s, k, b) [last] y = Conv(t, v2)",
        {"w": W["w"], "k": normal(8, 6, 2, 2, seed=16), "b": normal(6, seed=17), "v2": conv(4, 6, seed=18)},
    ),
    "concat": Case(
        """[first] s = Conv(x, w) [other] o = Conv(x, w2) r = Concat<axis = 1>(s, o) t = Relu(r)
           [last] y = Conv(t, v2)""",
        {"w": W["w"], "w2": conv(5, 3, 3, seed=19), "v2": conv(4, 13, seed=20)},
    ),
    "split": Case(
        """[first] s = Conv(x, w) a, b = Split<axis = 1>(s, sizes) c = Sigmoid(a) d = Mul(b, c)
           [last] y = Conv(d, v2)""",
        {"w": W["w"], "sizes": ints(4, 4), "v2": conv(4, 4, seed=21)},
    ),
    "split in unequal parts": Case(
        """[first] s = Conv(x, w) a, b = Split<axis = 1>(s, sizes) [one] p = Conv(a, va) [two] q = Conv(b, vb)
           y = Add(p, q)""",
        {"w": W["w"], "sizes": ints(3, 5), "va": conv(4, 3, seed=22), "vb": conv(4, 5, seed=23)},
    ),
    "slice": Case(
        """[first] s = Conv(x, w) a = Slice(s, two, six, axis) [last] y = Conv(a, v2)""",
        {"w": W["w"], "two": ints(2), "six": ints(6), "axis": ints(1), "v2": conv(4, 4, seed=24)},
    ),
    "gather": Case(
        """[first] s = Conv(x, w) a = Gather<axis = 1>(s, order) [last] y = Conv(a, v)""",
        {**W, "order": ints(7, 0, 1, -6, 3, 4, 5, 6)},
    ),
    "channel shuffle": Case(
        """[first] s = Conv(x, w) a = Reshape(s, grid) b = Transpose<perm = [0,2,1,3,4]>(a) t = Reshape(b, flat) """
        + ENDS,
        {**W, "grid": ints(0, 2, 4, 6, 6), "flat": ints(0, 8, 6, 6)},
    ),
    "flatten into Gemm": Case(
        """[first] s = Conv(x, w) r = MaxPool<kernel_shape = [2,2], strides = [2,2]>(s) f = Flatten(r)
           [last] y = Gemm<transB = 1>(f, k, b)""",
        {"w": W["w"], "k": normal(4, 72, seed=25), "b": normal(4, seed=26)},
        outputs="float[a,b] y",
    ),
    "global pooling by ReduceMean": Case(
        """[first] s = Conv(x, w) p = ReduceMean<axes = [2,3], keepdims = 0>(s) [last] y = MatMul(p, k)""",
        {"w": W["w"], "k": normal(8, 4, seed=27)},
        outputs="float[a,b] y",
    ),
    "pooling, Reshape by a computed shape": Case(
        """[first] s = Conv(x, w) p = GlobalAveragePool(s) h = Shape(p) n0 = Gather(h, zero) n1 = Unsqueeze(n0, at)
           to = Concat<axis = 0>(n1, eight) f = Reshape(p, to) [last] y = Gemm(f, k)""",
        {"w": W["w"], "k": normal(8, 4, seed=28), "zero": np.array(0, np.int64), "at": ints(0), "eight": ints(8)},
        outputs="float[a,b] y",
    ),
    "pixel shuffle": Case(
        """[first] s = Conv(x, w) t = DepthToSpace<blocksize = 2>(s) [last] y = Conv(t, v2)""",
        {"w": W["w"], "v2": conv(4, 2, seed=29)},
    ),
    "pixel shuffle, columns first": Case(
        """[first] s = Conv(x, w) t = DepthToSpace<blocksize = 2, mode = "CRD">(s) [last] y = Conv(t, v2)""",
        {"w": W["w"], "v2": conv(4, 2, seed=30)},
    ),
    "space to depth": Case(
        """[first] s = Conv(x, w) t = SpaceToDepth<blocksize = 2>(s) [last] y = Conv(t, v2)""",
        {"w": W["w"], "v2": conv(4, 32, seed=31)},
    ),
    "resize by scales": Case(
        """[first] s = Conv(x, w) t = Resize<mode = "nearest">(s, , scales) """ + ENDS,
        {**W, "scales": np.array([1, 1, 2, 2], np.float32)},
    ),
    "resize by sizes": Case(
        """[first] s = Conv(x, w) t = Resize<mode = "nearest">(s, , , sizes) """ + ENDS,
        {**W, "sizes": ints(2, 8, 12, 12)},
        inputs="float[2,3,8,8] x",
    ),
    "pad": Case(
        """[first] s = Conv(x, w) t = Pad(s, pads) [last] y = Conv(t, v2)""",
        {"w": W["w"], "pads": ints(0, 1, 1, 1, 0, 2, 1, 1), "v2": conv(4, 11, seed=32)},
    ),
    "PRelu": Case(f"[first] s = Conv(x, w) t = PRelu(s, a) {ENDS}", {**W, "a": normal(8, 1, 1, seed=33)}),
    "instance normalization": Case(
        f"[first] s = Conv(x, w) t = InstanceNormalization(s, g, b) {ENDS}",
        {**W, "g": normal(8, seed=34), "b": np.zeros(8, np.float32)},
    ),
    "transposed convolution in groups": Case(
        """[first] s = Conv(x, w) r = Relu(s) [up] g = ConvTranspose<group = 2, strides = [2,2]>(r, k, b) t = Relu(g)
           [last] y = Conv(t, v2)""",
        {"w": W["w"], "k": normal(8, 3, 2, 2, seed=84), "b": normal(6, seed=85), "v2": conv(4, 6, seed=86)},
    ),
    "channels of a transposed convolution in groups": Case(
        """z = Concat<axis = 1>(x, x) [first] g = ConvTranspose<group = 2>(z, k, b) t = Relu(g)
           [last] y = Conv(t, v2)""",
        {"k": normal(6, 4, 2, 2, seed=87), "b": normal(8, seed=88), "v2": conv(4, 8, seed=89)},
    ),
    "transposed convolutions in groups, one behind the other": Case(
        """[before] s = Conv(x, w) [first] g = ConvTranspose<group = 2>(s, k) [up] h = ConvTranspose<group = 2>(g, l)
           [last] y = Conv(h, v2)""",
        {"w": W["w"], "k": normal(8, 4, 2, 2, seed=90), "l": normal(8, 3, 1, 1, seed=91), "v2": conv(4, 6, seed=92)},
    ),
    "grouped convolution": Case(
        """[first] s = Conv(x, w) r = Relu(s) [grouped] g = Conv<group = 2>(r, k, b) t = Relu(g)
           [last] y = Conv(t, v2)""",
        {"w": W["w"], "k": conv(6, 4, 3, seed=35), "b": normal(6, seed=36), "v2": conv(4, 6, seed=37)},
    ),
    "layers side by side before a convolution in groups": Case(
        """[first] s = Conv(x, w) [second] r = Conv(x, w2) z = Concat<axis = 1>(s, r)
           [grouped] g = Conv<group = 2>(z, k) [last] y = Conv(g, v2)""",
        {"w": W["w"], "w2": conv(8, 3, 3, seed=120), "k": conv(6, 8, seed=121), "v2": conv(4, 6, seed=122)},
        ("first", "second"),
    ),
    "unequal layers side by side before a transposed convolution in groups": Case(
        """[first] s = Conv(x, w) [second] r = Conv(x, w2) z = Concat<axis = 1>(s, r)
           [grouped] g = ConvTranspose<group = 2>(z, k) [last] y = Conv(g, v2)""",
        {"w": W["w"], "w2": conv(12, 3, 3, seed=123), "k": conv(20, 3, seed=124), "v2": conv(4, 6, seed=125)},
        ("first", "second"),
    ),
    "layers in a group each, one of them wide": Case(
        """[first] s = Conv(x, w) [second] r = Conv(x, w2) z = Concat<axis = 1>(s, r)
           [grouped] g = Conv<group = 4>(z, k) [last] y = Conv(g, v2)""",
        {"w": conv(6, 3, 3), "w2": conv(18, 3, 3, seed=126), "k": conv(8, 6, seed=127), "v2": conv(4, 8, seed=128)},
        ("first", "second"),
    ),
    "convolution in one dimension": Case(
        """[first] s = Conv(x, w1) t = Relu(s) [last] y = Conv(t, v1)""",
        {"w1": normal(8, 3, 3, seed=38), "v1": normal(4, 8, 1, seed=39)},
        inputs="float[n,3,9] x",
        outputs="float[a,b,c] y",
    ),
    "convolution in three dimensions": Case(
        """[first] s = Conv(x, w1) t = Relu(s) [last] y = Conv(t, v1)""",
        {"w1": normal(8, 3, 2, 2, 2, seed=40), "v1": normal(4, 8, 1, 1, 1, seed=41)},
        inputs="float[n,3,4,4,4] x",
        outputs="float[a,b,c,d,e] y",
    ),
    "matrix products with leading dimensions": Case(
        """[first] s = MatMul(x, w1) r = Add(s, b) t = Relu(r) [last] y = MatMul(t, v1)""",
        {"w1": normal(5, 8, seed=42), "b": normal(8, seed=43), "v1": normal(8, 4, seed=44)},
        inputs="float[n,6,5] x",
        outputs="float[a,b,c] y",
    ),
    "attention heads": Case(
        """[first] q0 = MatMul(x, wq) [key] k0 = MatMul(x, wk) [value] v0 = MatMul(x, wv)
           q1 = Reshape(q0, heads) k1 = Reshape(k0, heads) v1 = Reshape(v0, heads)
           q = Transpose<perm = [0,2,1,3]>(q1) k = Transpose<perm = [0,2,3,1]>(k1) v = Transpose<perm = [0,2,1,3]>(v1)
           s0 = MatMul(q, k) s = Softmax<axis = -1>(s0) c0 = MatMul(s, v) c1 = Transpose<perm = [0,2,1,3]>(c0)
           c = Reshape(c1, flat) [last] y = MatMul(c, wo)""",
        {
            "wq": normal(5, 8, seed=45),
            "wk": normal(5, 8, seed=46),
            "wv": normal(5, 8, seed=47),
            "wo": normal(8, 5, seed=48),
            "heads": ints(0, 0, 2, 4),
            "flat": ints(0, 0, 8),
        },
        ("first", "key"),
        inputs="float[n,6,5] x",
        outputs="float[a,b,c] y",
    ),
    "into an LSTM": Case(
        """[first] s = MatMul(x, w1) t = Relu(s) [rec] y, , = LSTM<hidden_size = 4>(t, W, R)""",
        {"w1": normal(5, 8, seed=49), "W": normal(1, 16, 8, seed=50), "R": normal(1, 16, 4, seed=51)},
        inputs="float[6,n,5] x",
    ),
    "an LSTM": Case(
        """[first] a, , = LSTM<hidden_size = 6>(x, W, R, B) s = Squeeze(a, one) [last] y = MatMul(s, v1)""",
        {**LSTM, "v1": normal(6, 4, seed=103), **AT},
        inputs="float[6,n,5] x",
        outputs="float[a,b,c] y",
    ),
    "an LSTM in both directions, with peepholes and initial states": Case(
        """[first] a, , = LSTM<hidden_size = 6, direction = "bidirectional">(x, W, R, B, , h, c, P)
           b = Transpose<perm = [0,2,1,3]>(a) s = Reshape(b, flat) [last] y = MatMul(s, v1)""",
        {
            "W": normal(2, 24, 5, seed=93),
            "R": normal(2, 24, 6, seed=94),
            "B": normal(2, 48, seed=95),
            "h": normal(2, 3, 6, seed=96),
            "c": normal(2, 3, 6, seed=97),
            "P": normal(2, 18, seed=98),
            "v1": normal(12, 4, seed=99),
            "flat": ints(0, 0, -1),
        },
        inputs="float[6,3,5] x",
        outputs="float[a,b,c] y",
    ),
    "a GRU, read at its end": Case(
        """[first] u, a = GRU<hidden_size = 6, linear_before_reset = 1>(x, W, R, B) s = Squeeze(a, zero)
           [last] y = MatMul(s, v1)""",
        {
            "W": normal(1, 18, 5, seed=104),
            "R": normal(1, 18, 6, seed=105),
            "B": normal(1, 36, seed=106),
            "v1": normal(6, 4, seed=107),
            **AT,
        },
        inputs="float[6,n,5] x",
        outputs="float[a,b] y",
    ),
    "a GRU that runs backwards, from zeros of a computed shape": Case(
        """h = Shape(x) n = Slice(h, one, two, zero) to = Concat<axis = 0>(one, n, six) z = ConstantOfShape(to)
           [first] a, = GRU<hidden_size = 6, direction = "reverse">(x, W, R, , , z) s = Squeeze(a, one)
           [last] y = MatMul(s, v1)""",
        {
            "W": normal(1, 18, 5, seed=104),
            "R": normal(1, 18, 6, seed=105),
            "v1": normal(6, 4, seed=107),
            "six": ints(6),
            **AT,
        },
        inputs="float[6,n,5] x",
        outputs="float[a,b,c] y",
    ),
    "zeros of a known shape, which hold as many numbers as a shape does": Case(
        """h = Shape(x) n = Slice(h, one, two, zero) to = Concat<axis = 0>(one, n, six) z = ConstantOfShape(to)
           [first] a, = RNN<hidden_size = 6>(x, W, R, , , z) s = Squeeze(a, one) [last] y = MatMul(s, v1)""",
        {
            "W": normal(1, 6, 5, seed=104),
            "R": normal(1, 6, 6, seed=105),
            "v1": normal(6, 4, seed=107),
            "six": ints(6),
            **AT,
        },
        inputs="float[6,3,5] x",
        outputs="float[a,b,c] y",
    ),
    "ones of a computed shape": Case(
        """h = Shape(x) n = Slice(h, zero, one) to = Concat<axis = 0>(n, eight)
           u = ConstantOfShape<value = float[1] {1.0}>(to) [first] s = MatMul(x, w1) t = Mul(s, u)
           [last] y = MatMul(t, v1)""",
        {"w1": normal(5, 8, seed=115), "v1": normal(8, 4, seed=116), "eight": ints(8), **AT},
        inputs="float[n,5] x",
        outputs="float[a,b] y",
    ),
    "an RNN whose initial state is repeated": Case(
        """h = Shape(x) n = Slice(h, one, two, zero) to = Concat<axis = 0>(one, n, six) z = Expand(state, to)
           [first] a, b = RNN<hidden_size = 6>(x, W, R, B, , z) s = Squeeze(a, one) t = Add(s, b)
           [last] y = MatMul(t, v1)""",
        {
            "W": normal(1, 6, 5, seed=108),
            "R": normal(1, 6, 6, seed=109),
            "B": normal(1, 12, seed=110),
            "state": normal(1, 1, 6, seed=111),
            "v1": normal(6, 4, seed=112),
            "six": ints(6),
            **AT,
        },
        inputs="float[6,n,5] x",
        outputs="float[a,b,c] y",
    ),
    "two LSTMs, the second begins with the states of the first": Case(
        """[first] a, h, c = LSTM<hidden_size = 6>(x, W, R, B) s = Squeeze(a, one)
           [second] b, , = LSTM<hidden_size = 6>(s, W2, R2, B, , h, c) t = Squeeze(b, one) [last] y = MatMul(t, v1)""",
        {
            **LSTM,
            "W2": normal(1, 24, 6, seed=113),
            "R2": normal(1, 24, 6, seed=114),
            "v1": normal(6, 4, seed=103),
            **AT,
        },
        ("first", "second"),
        inputs="float[6,n,5] x",
        outputs="float[a,b,c] y",
    ),
    "through branches": Case(
        """[first] s = Conv(x, w)
           t = If(yes) <
               then_branch = p () => (float[n,8,h,k] a) { a0 = Relu(s) [inner] a = Conv(a0, u, b) },
               else_branch = q () => (float[n,8,h,k] d) { d0 = BatchNormalization(s, g, g, g, g) d = Neg(d0) }>
           r = Add(s, t) [last] y = Conv(r, v)""",
        {
            **W,
            "u": conv(8, 8, seed=117),
            "b": normal(8, seed=118),
            "g": np.abs(normal(8, seed=119)),
            "yes": np.array(True),
        },
        ("first", "inner"),
    ),
    "through the branch that does not run": Case(
        """[first] s = Conv(x, w)
           t = If(no) <
               then_branch = p () => (float[n,4,h,k] a) {
                   [inner] a0 = Conv(s, u) a1 = Relu(a0) [reader] a = Conv(a1, v) },
               else_branch = q () => (float[n,4,h,k] d) { [other] d = Conv(s, v3) }>
           y = Relu(t)""",
        {**W, "u": conv(8, 8, seed=117), "v3": conv(4, 8, seed=120), "no": np.array(False)},
    ),
    "carried through a loop": Case(
        """[first] s = Conv(x, w)
           t = Loop(times, , s) < body = d (int64 i, bool go, float[n,8,h,k] a) => (bool on, float[n,8,h,k] b) {
               on = Identity(go) [inner] r = Conv(a, u) q = Add(r, s) b = Tanh(q) }>
           [last] y = Conv(t, v)""",
        {**W, "u": conv(8, 8, seed=121), "times": np.array(3)},
        ("first", "inner"),
    ),
    "a loop that begins with zeros of a computed shape": Case(
        """h0 = Shape(x) n = Slice(h0, zero, one) to = Concat<axis = 0>(n, eight) none = ConstantOfShape(to)
           last, all = Loop(times, , none) < body = d (int64 i, bool go, float[n,8] a) => (
               bool on, float[n,8] b, float[n,8] copy) {
               on = Identity(go) [first] p = MatMul(x, w1) [again] r = MatMul(a, u1) q = Add(p, r) b = Tanh(q)
               copy = Identity(b) }>
           [last] z = MatMul(last, v1) [each] zs = MatMul(all, v1) y = Add(zs, z)""",
        {
            "w1": normal(5, 8, seed=122),
            "u1": normal(8, 8, seed=123),
            "v1": normal(8, 4, seed=124),
            "eight": ints(8),
            "times": np.array(3),
            **AT,
        },
        ("first", "again"),
        inputs="float[n,5] x",
        outputs="float[a,b,c] y",
    ),
    "a loop that begins with a constant": Case(
        """t, c = Loop(times, , start, start) < body = d (int64 i, bool go, float[2,8] a, float[2,8] m) => (
               bool on, float[2,8] b, float[2,8] e) {
               on = Identity(go) [first] p = MatMul(x, w1) [again] r = MatMul(a, u1) q = Add(p, r) b = Tanh(q)
               e = Max(m, b) }>
           j = Add(t, c) [last] y = MatMul(j, v1)""",
        {
            "w1": normal(5, 8, seed=122),
            "u1": normal(8, 8, seed=123),
            "v1": normal(8, 4, seed=124),
            "start": np.ones((2, 8), np.float32),
            "times": np.array(3),
        },
        ("first", "again"),
        inputs="float[2,5] x",
        outputs="float[a,b] y",
    ),
    "within the body of a loop": Case(
        """y = Loop(times, , x) < body = d (int64 i, bool go, float[n,5] a) => (bool on, float[n,5] b) {
               on = Identity(go) [first] s = MatMul(a, w1) r = Relu(s) [back] q = MatMul(r, v1) b = Add(q, a) }>""",
        {"w1": normal(5, 8, seed=122), "v1": normal(8, 5, seed=124), "times": np.array(3)},
        inputs="float[n,5] x",
        outputs="float[a,b] y",
    ),
    "a branch in a loop in a loop": Case(
        """[first] s = Conv(x, w)
           t = Loop(times, , s) < body = d (int64 i, bool go, float[n,8,h,k] a) => (bool on, float[n,8,h,k] b) {
               on = Identity(go)
               b = Loop(times, , a) < body = e (int64 j, bool run, float[n,8,h,k] f) => (bool more, float[n,8,h,k] g) {
                   more = Identity(run)
                   g = If(run) < then_branch = p () => (float[n,8,h,k] g1) { [inner] r = Conv(f, u) g1 = Tanh(r) },
                                 else_branch = q () => (float[n,8,h,k] g2) { g2 = Neg(s) }> }> }>
           [last] y = Conv(t, v)""",
        {**W, "u": conv(8, 8, seed=121), "times": np.array(2)},
        ("first", "inner"),
    ),
    "parts in a loop, as large as a constant outside of it says": Case(
        """[first] s = MatMul(x, w1)
           t = Loop(times, , s) < body = d (int64 i, bool go, float[n,8] a) => (bool on, float[n,8] b) {
               on = Identity(go) l, r = Split<axis = 1>(a, sizes) m = Tanh(l) b = Concat<axis = 1>(m, r) }>
           [last] y = MatMul(t, v1)""",
        {
            "w1": normal(5, 8, seed=132),
            "v1": normal(8, 4, seed=133),
            "sizes": ints(4, 4),
            "times": np.array(2),
        },
        inputs="float[n,5] x",
        outputs="float[a,b] y",
    ),
    "a number of channels that a loop reads as a scale": Case(
        """[first] s = Conv(x, w) h = Shape(s) n = Gather(h, at1)
           t = Loop(times, , s) < body = d (int64 i, bool go, float[n,8,h,k] a) => (bool on, float[n,8,h,k] b) {
               on = Identity(go) f = Cast<to = 1>(n) b = Div(a, f) }>
           [last] y = Conv(t, v)""",
        {**W, **AT, "times": np.array(2)},
    ),
    "Scan over steps": Case(
        """final, all = Scan<num_scan_inputs = 1, body = d (float[2,8] a, float[2,5] step) => (
               float[2,8] b, float[2,8] copy) {
               [first] p = MatMul(step, w1) [again] r = MatMul(a, u1) q = Add(p, r) b = Tanh(q) copy = Identity(b) }
           >(start, x)
           [last] y = MatMul(all, v1)""",
        {
            "w1": normal(5, 8, seed=122),
            "u1": normal(8, 8, seed=123),
            "v1": normal(8, 4, seed=124),
            "start": normal(2, 8, seed=125),
        },
        ("first", "again"),
        inputs="float[6,2,5] x",
        outputs="float[a,b,c] y",
    ),
    "Scan along other axes": Case(
        """[first] s = MatMul(x, w1)
           final, all = Scan<num_scan_inputs = 2, scan_input_axes = [1, -2], scan_output_axes = [-2],
               scan_input_directions = [1, 0], body = d (float[2,8] a, float[2,8] step, float[6,8] place) => (
               float[2,8] b, float[2,8] copy) {
               m = ReduceSum<keepdims = 0>(place, axis) q = Add(a, step) c = Tanh(q) b = Mul(c, m) copy = Neg(b) }
           >(start, s, places)
           f = Unsqueeze(final, one) j = Add(all, f) [last] y = MatMul(j, v1)""",
        {
            "w1": normal(5, 8, seed=122),
            "v1": normal(8, 4, seed=124),
            "start": normal(2, 8, seed=125),
            "places": normal(6, 6, 8, seed=126),
            "axis": ints(0),
            "one": ints(1),
        },
        inputs="float[2,6,5] x",
        outputs="float[a,b,c] y",
    ),
    "channel shuffle by sizes computed from shapes": Case(
        """[first] s = Conv(x, w) h = Shape(s) n = Gather(h, at0) c = Gather(h, at1) hw = Slice(h, two, four)
           half = Div(c, pair) n1 = Unsqueeze(n, zero) c1 = Unsqueeze(c, zero) half1 = Unsqueeze(half, zero)
           to = Concat<axis = 0>(n1, two, half1, hw) a = Reshape(s, to) b = Transpose<perm = [0,2,1,3,4]>(a)
           back = Concat<axis = 0>(n1, c1, hw) t = Reshape(b, back) """
        + ENDS,
        {**W, **AT, "pair": np.array(2, np.int64)},
    ),
    "halves by bounds computed from shapes": Case(
        """[first] s = Conv(x, w) h = Shape(s) c = Gather(h, one) up = Add(c, one) half = Div(up, two)
           end = Mul(half, two) a = Slice(s, zero, half, one) b = Slice(s, half, end, one) g = Sigmoid(a) d = Mul(g, b)
           [last] y = Conv(d, v2)""",
        {"w": W["w"], **AT, "v2": conv(4, 4, seed=60)},
    ),
    "attention scaled by the root of a computed number of channels": Case(
        """[first] q0 = MatMul(x, wq) [key] k0 = MatMul(x, wk) h = Shape(q0) c = Gather(h, two)
           f = Cast<to = 1>(c) root = Sqrt(f) q = Div(q0, root) k = Transpose<perm = [0,2,1]>(k0)
           s0 = MatMul(q, k) y = Softmax<axis = -1>(s0)""",
        {"wq": normal(5, 8, seed=61), "wk": normal(5, 8, seed=62), **AT},
        ("first", "key"),
        inputs="float[n,6,5] x",
        outputs="float[a,b,c] y",
    ),
    "shapes of one tensor for another with other channels": Case(
        """[first] s = MatMul(x, w1) [other] o = MatMul(x, w2) h = Shape(o) n = Slice(h, zero, one)
           c = Slice(h, two, three) to = Concat<axis = 0>(n, minus, c) a = Reshape(s, to) b = Relu(a)
           p = MatMul(b, v1) q = MatMul(o, v2) y = Add(p, q)""",
        {
            "w1": normal(5, 8, seed=63),
            "w2": normal(5, 8, seed=64),
            "v1": normal(8, 4, seed=65),
            "v2": normal(8, 4, seed=66),
            "minus": ints(-1),
            **AT,
        },
        inputs="float[n,6,5] x",
        outputs="float[a,b,c] y",
    ),
    "embedding tables": Case(
        """e = Gather(table, ids) [first] s = MatMul(x, w1) r = Add(s, e) t = Add(r, places)
           [last] y = MatMul(t, v1)""",
        {
            "w1": normal(5, 8, seed=66),
            "v1": normal(8, 4, seed=67),
            "table": normal(9, 8, seed=68),
            "places": normal(1, 6, 8, seed=69),
        },
        inputs="float[n,6,5] x, int64[n,6] ids",
        outputs="float[a,b,c] y",
    ),
    "class token": Case(
        """h = Shape(x) n = Slice(h, zero, one) sizes = Concat<axis = 0>(n, minus, minus)
           kept = Equal(sizes, marks) to = Where(kept, ones, sizes) k = Expand(token, to)
           [first] s = MatMul(x, w1) t = Concat<axis = 1>(k, s) [last] y = MatMul(t, v1)""",
        {
            "w1": normal(5, 8, seed=70),
            "v1": normal(8, 4, seed=71),
            "token": normal(1, 1, 8, seed=72),
            "minus": ints(-1),
            "marks": ints(-1, -1, -1),
            "ones": ints(1, 1, 1),
            **AT,
        },
        inputs="float[n,6,5] x",
        outputs="float[a,b,c] y",
    ),
    "windows of an image": Case(
        """[first] s = MatMul(x, w1) a = Reshape(s, cut) b = Transpose<perm = [0,1,3,2,4,5]>(a) c = Reshape(b, flat)
           d = Relu(c) e = Reshape(d, cut2) f = Transpose<perm = [0,1,3,2,4,5]>(e) t = Reshape(f, whole)
           [last] y = MatMul(t, v1)""",
        {
            "w1": normal(5, 8, seed=73),
            "v1": normal(8, 4, seed=74),
            "cut": ints(-1, 2, 3, 2, 2, 8),
            "flat": ints(-1, 6, 8),
            "cut2": ints(-1, 2, 2, 3, 2, 8),
            "whole": ints(-1, 24, 8),
        },
        inputs="float[n,6,4,5] x",
        outputs="float[a,b,c] y",
    ),
    "one weight for two layers": Case(
        """[first] s = Conv(x, w) [again] r = Conv(z, w) q = Add(s, r) a = Relu(q) b = Tanh(s)
           t = Concat<axis = 1>(a, b) [last] y = Conv(t, v2)""",
        {"w": W["w"], "v2": conv(4, 16, seed=75)},
        ("first", "again"),
        inputs="float[n,3,8,8] x, float[n,3,8,8] z",
    ),
    "Einsum": Case(
        """[first] q = MatMul(x, wq) [key] k = MatMul(x, wk) [value] v = MatMul(x, wv)
           s0 = Einsum<equation = "b i d, b j d -> b i j">(q, k) s = Softmax<axis = -1>(s0)
           t = Einsum<equation = "bij,bjd->bid">(s, v) [last] y = MatMul(t, wo)""",
        {
            "wq": normal(5, 8, seed=76),
            "wk": normal(5, 8, seed=77),
            "wv": normal(5, 8, seed=78),
            "wo": normal(8, 5, seed=79),
        },
        ("first", "key"),
        inputs="float[n,6,5] x",
        outputs="float[a,b,c] y",
    ),
    "regions of interest": Case(
        """[first] s = Conv(x, w) t = RoiAlign<output_height = 2, output_width = 2>(s, rois, batch)
           [last] y = Conv(t, v)""",
        {**W, "rois": np.array([[0, 0, 4, 4], [1, 1, 5, 5]], np.float32), "batch": ints(0, 0)},
    ),
    "as many zeros as there are channels": Case(
        """[first] s = Conv(x, w) h = Shape(s) none = ConstantOfShape(h) q = Concat<axis = 2>(s, none) t = Relu(q) """
        + ENDS,
        W,
    ),
    "as many zeros as there are channels, few enough for a shape": Case(
        """[first] s = MatMul(x, w1) h = Shape(s) none = ConstantOfShape(h) [other] p = MatMul(none, u1)
           [last] q = MatMul(s, v1) y = Add(p, q)""",
        {"w1": normal(5, 8, seed=129), "u1": normal(8, 4, seed=130), "v1": normal(8, 4, seed=131)},
        inputs="float[2,5] x",
        outputs="float[a,b] y",
    ),
    "pairs turned by angles": Case(
        """[first] s = MatMul(x, w1) even = Slice(s, zero, large, two, two) odd = Slice(s, one, large, two, two)
           less = Neg(odd) a = Unsqueeze(less, three) b = Unsqueeze(even, three) c = Concat<axis = 3>(a, b)
           turned = Reshape(c, flat) p = Mul(s, cosines) q = Mul(turned, sines) t = Add(p, q)
           [last] y = MatMul(t, v1)""",
        {
            "w1": normal(5, 12, seed=80),
            "v1": normal(12, 4, seed=81),
            "cosines": normal(6, 12, seed=82),
            "sines": normal(6, 12, seed=83),
            "flat": ints(0, 0, 12),
            "large": ints(2**62),
            **AT,
        },
        inputs="float[n,6,5] x",
        outputs="float[a,b,c] y",
    ),
    "an input that is given out as it is": Case(
        f"[first] s = Conv(x, w) t = Relu(s) {ENDS}", W, outputs="float[a,b,c,d] y, float[m,3,8,8] x"
    ),
    "where and comparisons": Case(
        f"[first] s = Conv(x, w) m = Greater(s, limit) t = Where(m, s, zero) {ENDS}",
        {**W, "limit": normal(8, 1, 1, seed=52), "zero": np.zeros((1, 8, 1, 1), np.float32)},
    ),
}


def source(case: Case, weights: dict[str, Array] | None = None) -> ModelProto:
    return parse(case.text, case.inputs, case.outputs, weights or case.weights, opset=case.opset)


def opened(proto: ModelProto) -> Prunable:
    feed = sample_feed(proto, None, {})
    return open_prunable(proto, None, tensor_shapes(proto, None, feed))


def group_of(prunable: Prunable, layer: str) -> Group:
    return next(group for group in prunable.groups if layer in {one.node.name for one in group.producers})


def some_units(group: Group) -> Array:
    """About a third of what is free, as much of each block."""
    blocks = [group.units[group.is_free & (group.blocks == block)] for block in range(group.block_count)]
    count = max(1, min(len(block) for block in blocks) // 3)
    return np.concatenate([block[1 : 1 + count] for block in blocks])


@pytest.mark.parametrize("name", CASES)
def test_dead_channels_go_without_a_trace(name: str) -> None:
    case = CASES[name]
    prunable = opened(source(case))
    group = group_of(prunable, "first")
    assert tuple(one.node.name for one in group.producers) == case.layers
    units = some_units(group)
    dead = _with_dead_channels(prunable, group, units, case)
    proto = source(case, dead)
    pruned = prune_model(opened(proto), units).to_proto()
    onnx.checker.check_model(pruned)
    assert _size(pruned) < _size(proto)
    feed = sample_feed(proto, None, {}, seed=5)
    want, got = run(proto, feed)[0], run(pruned, feed)[0]
    np.testing.assert_allclose(got, want, atol=2e-5 * np.abs(want).max())
    smaller = {key: array[:1] if "[n," in case.inputs else array[:, :1] for key, array in feed.items()}
    if "n," in case.inputs:
        np.testing.assert_allclose(run(pruned, smaller)[0], run(proto, smaller)[0], atol=1e-4)


@pytest.mark.parametrize("name", CASES)
def test_a_record_names_the_very_channels(name: str) -> None:
    proto = source(CASES[name])
    prunable = opened(proto)
    group = group_of(prunable, "first")
    records = prune_records(prunable, {group.name: some_units(group)})
    assert set(units_of_records(opened(proto), records, "record").tolist()) == set(some_units(group).tolist())


def _size(proto: ModelProto) -> int:
    weights = (entry for entry in proto.graph.initializer if entry.data_type == onnx.TensorProto.FLOAT)
    return sum(numpy_helper.to_array(entry).size for entry in weights)


def _with_dead_channels(prunable: Prunable, group: Group, units: Array, case: Case) -> dict[str, Array]:
    """The weights with these channels zero wherever they are made, shifted or scaled."""
    weights = {name: values.copy() for name, values in case.weights.items()}
    gone = prunable.flow.labels.find(units)
    made = {id(producer.node): producer.labels for producer in prunable.flow.producers}
    for adjustment in prunable.flow.adjustments:
        if isinstance(adjustment, GroupedWeight):
            _clear_blocks(weights, adjustment, lambda labels: np.isin(prunable.flow.labels.find(labels), gone))
        axes = getattr(adjustment, "axes", None)
        if axes is None:
            continue
        tensor = weights.get(adjustment.node.inputs[adjustment.index].name)
        if tensor is None or tensor.dtype != np.float32:
            continue
        for axis, labels in axes.items():
            dead = np.isin(prunable.flow.labels.find(labels), gone)
            index: list[object] = [slice(None)] * tensor.ndim
            index[axis] = dead
            # A weight is cleared where the channels are made, not where they are read.
            is_read = adjustment.index == 1 and labels is not made.get(id(adjustment.node), labels)
            if adjustment.node.op in ("LSTM", "GRU", "RNN"):
                is_read = adjustment.index in (1, 2) and axis == 2
            if not is_read:
                tensor[tuple(index)] = 0
    return weights


def _clear_blocks(weights: dict[str, Array], of: GroupedWeight, is_dead: Callable[[Array], Array]) -> None:
    """The weights of a convolution in groups without those that make dead channels."""
    tensor = weights[of.node.inputs[1].name]
    blocks = tensor.reshape(len(of.rows), -1, *tensor.shape[1:])
    for block, rows, columns in zip(blocks, of.rows, of.columns, strict=True):
        if of.node.op == "Conv":
            block[is_dead(rows)] = 0
        else:
            block[:, is_dead(columns)] = 0


def test_a_product_of_computed_tensors_reads_channels() -> None:
    group = group_of(opened(source(CASES["Einsum"])), "first")
    assert [reader.node.op for reader in group.readers] == ["Einsum"]


def test_every_part_keeps_a_channel() -> None:
    group = group_of(opened(source(CASES["split in unequal parts"])), "first")
    assert [int(group.is_free[part].sum()) for part in (slice(0, 3), slice(3, 8))] == [2, 4]


def test_a_shared_weight_stays_one() -> None:
    proto = source(CASES["one weight for two layers"])
    group = group_of(opened(proto), "first")
    pruned = prune_model(opened(proto), some_units(group)).to_proto()
    assert len(pruned.graph.initializer) == len(proto.graph.initializer)


PINNED = {
    "it makes no channels": Case(
        "[first] s = MatMul(x, none) y = MatMul(s, nothing)",
        {"none": normal(5, 0), "nothing": normal(0, 4)},
        inputs="float[n,5] x",
        outputs="float[a,b] y",
    ),
    "the model's output": Case("[first] y = Conv(x, w)", W),
    "no layer's": Case(
        "[first] s = Conv(x, w3) t = Add(s, x) [last] y = Conv(t, v3)", {"w3": conv(3, 3), "v3": conv(4, 3)}
    ),
    "works along them": Case(f"[first] s = Conv(x, w) t = Softmax<axis = 1>(s) {ENDS}", W),
    "cannot be followed": Case(
        """[first] s = Conv(x, w) a = Reshape(s, to) b = Relu(a) y = Reshape(b, back)""",
        {**W, "to": ints(-1, 96), "back": ints(-1, 8, 6, 6)},
    ),
    "no rule": Case(
        "[first] s = Conv(x, w) t = LRN<size = 3>(s) u = Det(t) y = Identity(u)", W, outputs="float[a,b] y"
    ),
    "slides along them": Case(
        """[first] s = MatMul(x, w1) t = Conv(s, k) [last] y = MatMul(t, v1)""",
        {"w1": normal(5, 8), "k": normal(2, 6, 3), "v1": normal(6, 4)},
        inputs="float[n,6,5] x",
        outputs="float[a,b,c] y",
    ),
    "adds up channels": Case(
        """[first] s = MatMul(x, w1) y = Einsum<equation = "bid->bi">(s)""",
        {"w1": normal(5, 8)},
        inputs="float[n,6,5] x",
        outputs="float[a,b] y",
    ),
    "its initial state 'h', which is no layer's": Case(
        "[first] a, , = LSTM<hidden_size = 6>(x, W, R, B, , h) s = Squeeze(a, one) [last] y = MatMul(s, v1)",
        {**LSTM, "v1": normal(6, 4), **AT},
        inputs="float[6,n,5] x, float[1,n,6] h",
        outputs="float[a,b,c] y",
    ),
    "the model's output 'h'": Case(
        "[first] a, h, = LSTM<hidden_size = 6>(x, W, R, B) s = Squeeze(a, one) [last] y = MatMul(s, v1)",
        {**LSTM, "v1": normal(6, 4), **AT},
        inputs="float[6,n,5] x",
        outputs="float[a,b,c] y, float[1,n,6] h",
    ),
    "If 't': its branches give 't' in different shapes": Case(
        """[first] s = Conv(x, w)
           [t] t = If(yes) <
               then_branch = p () => (float[n,8,h,k] a) { a = Relu(s) },
               else_branch = q () => (float[n,8,1,1] d) { d = GlobalAveragePool(s) }>
           [last] y = Conv(t, v)""",
        {**W, "yes": np.array(True)},
    ),
    "'d' of another branch, which is no layer's": Case(
        """[first] s = Conv(x, w)
           [t] t = If(yes) <
               then_branch = p () => (float[n,8,h,k] a) { a = Relu(s) },
               else_branch = q () => (float[n,8,h,k] d) { d = Neg(z) }>
           [last] y = Conv(t, v)""",
        {**W, "yes": np.array(True)},
        inputs="float[n,3,8,8] x, float[n,8,6,6] z",
    ),
    "Scan 'final': it takes a position in each run": Case(
        """[first] s = MatMul(x, w1)
           [final] final, y = Scan<num_scan_inputs = 1, scan_input_axes = [1], body = d (
               float[6] a, float[6] column) => (float[6] b, float[6] copy) {
               b = Add(a, column) copy = Tanh(b) }>(start, s)""",
        {"w1": normal(5, 8), "start": normal(6)},
        inputs="float[6,5] x",
        outputs="float[a,b] y",
    ),
    "Loop 't': what it carries on as 'b' changes its shape": Case(
        """[first] s = Conv(x, w)
           [t] t = Loop(times, , s) < body = d (int64 i, bool go, float[n,8,h,k] a) => (bool on, float[n,8,h,k] b) {
               on = Identity(go) b = Concat<axis = 2>(a, s) }>
           [last] y = Conv(t, v)""",
        {**W, "times": np.array(2)},
    ),
    "'a' of the run before, which is no layer's": Case(
        """[first] s = Conv(x, w)
           [t] t = Loop(times, , z) < body = d (int64 i, bool go, float[n,8,h,k] a) => (bool on, float[n,8,h,k] b) {
               on = Identity(go) b = Relu(s) }>
           [last] y = Conv(t, v)""",
        {**W, "times": np.array(2)},
        inputs="float[n,3,8,8] x, float[n,8,6,6] z",
    ),
    "Loop 't': it carries on what is computed from their number": Case(
        """[first] s = Conv(x, w) h = Shape(s) n = Gather(h, at1)
           [t] m = Loop(times, , n) < body = d (int64 i, bool go, int64 a) => (bool on, int64 b) {
               on = Identity(go) b = Add(a, i) }>
           f = Cast<to = 1>(m) t = Div(s, f) [last] y = Conv(t, v)""",
        {**W, **AT, "times": np.array(2)},
    ),
    "Loop 't': whether it goes on is computed from their number": Case(
        """[first] s = Conv(x, w)
           [t] t = Loop(times, , x) < body = d (int64 i, bool go, float[n,3,h,k] a) => (bool on, float[n,3,h,k] b) {
               h = Shape(s) n = Gather(h, at1) on = Cast<to = 9>(n) b = Neg(a) }>
           sum = ReduceSum<keepdims = 0>(t) [last] y0 = Conv(s, v) y = Add(y0, sum)""",
        {**W, **AT, "times": np.array(2)},
    ),
    "stretches": Case(
        """[first] s = Conv(x, w) t = Resize(s, , scales) [last] y = Conv(t, v2)""",
        {"w": W["w"], "scales": np.array([1, 2, 1, 1], np.float32), "v2": conv(4, 16)},
    ),
}


@pytest.mark.parametrize("reason", PINNED)
def test_what_pins_channels_is_named(reason: str) -> None:
    group = group_of(opened(source(PINNED[reason])), "first")
    assert not group.is_free.any()
    assert reason in group.reason or ("mixes neighbouring" in group.reason and reason == "no rule")
