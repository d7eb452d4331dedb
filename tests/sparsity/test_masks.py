"""Masks by size: AMCT's documented values, every layout, layers that share weights or cannot be thinned out."""

from __future__ import annotations

import numpy as np
import pytest

import amct_onnx
from amct_onnx.errors import NothingToCompressError
from amct_onnx.passes.sparsity.candidates import find_candidates
from amct_onnx.passes.sparsity.input_axis import input_axis
from amct_onnx.passes.sparsity.magnitude import largest_of_four
from amct_onnx.rewrite.sparsity import most_kept
from tests.models import Array, imported, normal, parse

REFERENCE = (0.5, -0.1, 0.3, 0.2, 0.05, 0.6, -0.7, 0.4)


def gemm(count: int) -> tuple[str, dict[str, Array]]:
    return "[fc] y = Gemm<transB = 1>(x, w)", {"w": np.array([REFERENCE[:count]], np.float32)}


@pytest.mark.parametrize(
    ("count", "kept"),
    [(3, "101"), (4, "1010"), (5, "10101"), (6, "101011"), (7, "1010011"), (8, "10100110")],
)
def test_documented_masks(count: int, kept: str) -> None:
    nodes, weights = gemm(count)
    model = imported(parse(nodes, f"float[n,{count}] x", "float[n,1] y", weights))
    (layer,) = find_candidates(model).layers
    mask = largest_of_four(weights["w"], layer.axis)
    assert "".join(str(int(bit)) for bit in mask[0]) == kept


def test_two_input_channels_all_stay() -> None:
    nodes, weights = gemm(2)
    found = find_candidates(imported(parse(nodes, "float[n,2] x", "float[n,1] y", weights)))
    assert not found.layers
    assert [refusal.reason for refusal in found.refusals] == [
        "of every four weights 2 stay, and it has 2 input channels per group"
    ]


def test_of_equal_weights_the_first_stay() -> None:
    nodes, weights = gemm(4)
    (layer,) = find_candidates(imported(parse(nodes, "float[n,4] x", "float[n,1] y", weights))).layers
    assert largest_of_four(np.ones((1, 4), np.float32), layer.axis).tolist() == [[True, True, False, False]]


Lines = list[list[tuple[int, ...]]]


def by_hand(weight: Array, lines: Lines) -> Array:
    """The mask, line by line: each line holds the places of one row along the input channels, in order."""
    mask = np.zeros(weight.shape, np.bool_)
    for line in lines:
        for begin in range(0, len(line), 4):
            four = line[begin : begin + 4]
            for place in sorted(four, key=lambda place: -abs(weight[place]))[:2]:
                mask[place] = True
    return mask


def conv_lines(shape: tuple[int, ...]) -> Lines:
    """Along axis 1, for every filter and place in the kernel."""
    kernel = list(np.ndindex(shape[2:]))
    return [[(out, inner, *place) for inner in range(shape[1])] for out in range(shape[0]) for place in kernel]


def transposed_lines(shape: tuple[int, ...], group: int) -> Lines:
    """Along axis 0, each group of the convolution by itself."""
    size = shape[0] // group
    return [
        [(index * size + inner, out, *place) for inner in range(size)]
        for index in range(group)
        for out in range(shape[1])
        for place in np.ndindex(shape[2:])
    ]


CASES: dict[str, tuple[str, tuple[int, ...], Lines]] = {
    "conv": ("Conv(x, w)", (6, 9, 3, 2), conv_lines((6, 9, 3, 2))),
    "grouped conv": ("Conv<group = 2>(x, w)", (6, 5, 3), conv_lines((6, 5, 3))),
    "transposed": ("ConvTranspose(x, w)", (7, 4, 2, 2), transposed_lines((7, 4, 2, 2), 1)),
    # Ten channels in two groups: fours do not cross from one group into the other.
    "grouped transposed": ("ConvTranspose<group = 2>(x, w)", (10, 3, 2), transposed_lines((10, 3, 2), 2)),
    "gemm": ("Gemm(x, w)", (7, 3), [[(inner, out) for inner in range(7)] for out in range(3)]),
    "gemm turned": ("Gemm<transB = 1>(x, w)", (3, 7), [[(out, inner) for inner in range(7)] for out in range(3)]),
    "product": ("MatMul(x, w)", (7, 3), [[(inner, out) for inner in range(7)] for out in range(3)]),
    "batch of products": (
        "MatMul(x, w)",
        (2, 7, 3),
        [[(one, inner, out) for inner in range(7)] for one in range(2) for out in range(3)],
    ),
    "constant first": ("MatMul(w, x)", (3, 7), [[(out, inner) for inner in range(7)] for out in range(3)]),
}


@pytest.mark.parametrize("case", CASES)
def test_fours_lie_along_the_input_channels(case: str) -> None:
    call, shape, lines = CASES[case]
    weight = normal(*shape, seed=3)
    model = imported(parse(f"[layer] y = {call}", "float[] x", "float[] y", {"w": weight}))
    (layer,) = find_candidates(model).layers
    mask = largest_of_four(weight, layer.axis)
    np.testing.assert_array_equal(mask, by_hand(weight, lines))
    assert most_kept(mask, layer) == 2
    assert most_kept(np.ones(shape, np.bool_), layer) == 4
    np.testing.assert_array_equal(layer.axis.stored(layer.axis.seen(weight)), weight)


def test_input_axis_of_a_grouped_transposed_convolution() -> None:
    model = imported(parse("[t] y = ConvTranspose<group = 2>(x, w)", "float[] x", "float[] y", {"w": normal(8, 3, 2)}))
    assert input_axis(model.graph.nodes[0], 1, (8, 3, 2)).per_group == 4


@pytest.mark.parametrize(
    ("nodes", "weights", "reason"),
    [
        (
            "[d] y = Conv<group = 8>(x, w)",
            {"w": normal(8, 1, 3, 3)},
            "of every four weights 2 stay, and it has 1 input channel per group",
        ),
        ("c = Abs(x) [d] y = MatMul(c, x)", {}, "both its inputs are computed at run time"),
        ("[d] y = MatMul(x, w)", {"w": normal(8)}, "its weight is a vector"),
        ("[d] y = MatMul(x, w)", {"w": normal(8, 0)}, "its weight holds nothing"),
        ("[d] y = MatMul(x, w) z = Gather(w, i)", {"w": normal(8, 8), "i": np.array([1])}, "reads its weight, too"),
        ("[d] y = MatMul(x, w) [e] z = MatMul(w, x)", {"w": normal(8, 8)}, "is not thinned out in the same way"),
    ],
)
def test_what_cannot_be_thinned_out_has_a_reason(nodes: str, weights: dict[str, Array], reason: str) -> None:
    found = find_candidates(imported(parse(nodes, "float[] x", "float[] y", weights)))
    assert not found.layers
    assert reason in {refusal.node: refusal.reason for refusal in found.refusals}["d"]


def test_a_layer_left_out_takes_those_along_that_share_its_weight() -> None:
    nodes = "[a] h = MatMul(x, w) [b] y = MatMul(h, w)"
    model = imported(parse(nodes, "float[n,8] x", "float[n,8] y", {"w": normal(8, 8)}))
    assert [layer.shares for layer in find_candidates(model).layers] == [("a", "b"), ("a", "b")]
    found = find_candidates(model, {"a": "it is skipped on request"})
    assert not found.layers
    assert {refusal.node: refusal.reason for refusal in found.refusals} == {
        "a": "it is skipped on request",
        "b": "'a' reads its weight, too, and is not thinned out in the same way",
    }


_VALUES = "{" + ", ".join(str(value) for value in range(1, 17)) + "}"


@pytest.mark.parametrize(
    "nodes",
    [
        f"c = Constant<value = float[4,4] {_VALUES}>() [a] h = MatMul(x, c) [b] y = MatMul(h, c)",
        f"c = Constant<value = float[4,4] {_VALUES}>() i = Identity(c) [a] h = MatMul(x, i) [b] y = MatMul(h, c)",
        "i = Identity(w) j = Identity(i) [a] h = MatMul(x, i) [b] y = MatMul(h, j)",
        "i = Identity(w) [a] h = MatMul(x, w) [b] y = MatMul(h, i)",
    ],
)
def test_a_weight_is_shared_however_it_is_handed_on(nodes: str) -> None:
    weights = {} if "Constant" in nodes else {"w": normal(4, 4)}
    model = imported(parse(nodes, "float[n,4] x", "float[n,4] y", weights))
    assert [set(layer.shares) for layer in find_candidates(model).layers] == [{"a", "b"}, {"a", "b"}]
    assert not find_candidates(model, {"a": "it is skipped on request"}).layers


def test_nothing_to_thin_out_is_an_error_with_the_reasons() -> None:
    model = parse("[d] y = Conv<group = 4>(x, w)", "float[n,4,8,8] x", "float[n,4,6,6] y", {"w": normal(4, 1, 3, 3)})
    with pytest.raises(
        NothingToCompressError, match="'d': of every four weights 2 stay, and it has 1 input channel per group"
    ):
        amct_onnx.sparsify(model)
