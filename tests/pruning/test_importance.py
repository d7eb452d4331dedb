"""How channels are ranked, against plain numpy."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest
from onnx import ModelProto

from amct_onnx import ChannelGroup, ChannelSensitivity, UsageError, prune
from amct_onnx.analyse.pruning.elimination import ReaderView, eliminate, eliminate_in_order
from amct_onnx.analyse.pruning.importance import removal_order
from amct_onnx.analyse.pruning.scores import taylor
from tests.models import Array, normal, parse
from tests.pruning.test_choosing import group, loss_without, view


def gone(model: ModelProto, *, ratio: float = 0.5, data: object = None, importance: object) -> tuple[int, ...]:
    """Output channels that the first layer loses."""
    result = prune(model, data, ratio=ratio, importance=importance, recover=False)  # type: ignore[arg-type]
    return result.record.prune[0].producers[0].prune_index or ()


def lowest(scores: Array, count: int) -> tuple[int, ...]:
    return tuple(sorted(np.argsort(scores, kind="stable")[:count].tolist()))


def in_range(values: Array) -> Array:
    return (values - values.min()) / (values.max() - values.min())


GAMMAS = [np.array(values, np.float32) for values in ([0.1, -0.9, 0.5, 0.3, -0.2, 0.8], [3, 1, -2, 0.5, 6, -7])]
WEIGHTS = {
    "w1": normal(6, 3, 1, 1, seed=1),
    "w2": normal(6, 3, 1, 1, seed=2),
    "w3": normal(4, 6, 1, 1, seed=3),
    "g1": GAMMAS[0],
    "g2": GAMMAS[1],
    "h": np.zeros(6, np.float32),
    "u": np.ones(6, np.float32),
}


def two_branches(left: str, right: str) -> ModelProto:
    nodes = f"""[left] a = Conv(x, w1) {left} [right] b = Conv(x, w2) {right}
                [sum] s = Add(p, q) [last] y = Conv(s, w3)"""
    return parse(nodes, "float[n,3,4,4] x", "float[n,4,4,4] y", WEIGHTS)


def notes(model: ModelProto) -> str:
    return " ".join(prune(model, ratio=0.5, importance="bn_scale").report.notes)


def test_scales_of_normalizations_are_added_up_over_the_layers() -> None:
    model = two_branches("p = BatchNormalization(a, g1, h, h, u)", "q = BatchNormalization(b, g2, h, h, u)")
    expected = lowest(in_range(np.abs(GAMMAS[0])) + in_range(np.abs(GAMMAS[1])), 3)
    assert gone(model, importance="bn_scale") == expected
    assert notes(model) == ""


@pytest.mark.parametrize(
    "behind",
    [
        "q = Relu(b)",
        # What is read beside the normalization is not scaled by it.
        "r = BatchNormalization(b, g2, h, h, u) q = Add(r, b)",
    ],
)
def test_layers_without_one_are_ranked_by_norm_and_named(behind: str) -> None:
    model = two_branches("p = BatchNormalization(a, g1, h, h, u)", behind)
    folded = WEIGHTS["w2"]
    norms = np.linalg.norm(folded.reshape(6, -1), axis=1)
    assert gone(model, importance="bn_scale") == lowest(in_range(np.abs(GAMMAS[0])) + in_range(norms), 3)
    assert "right: no BatchNormalization alone reads their channels" in notes(model)


def test_a_normalization_along_another_axis_says_nothing_of_channels() -> None:
    # Behind a product of three axes, the normalization's channels are the rows.
    weights = {"w": normal(5, 6), "g": GAMMAS[0], "h": np.zeros(6, np.float32), "u": np.ones(6, np.float32)}
    weights["v"] = normal(6, 4, seed=1)
    model = parse(
        "[first] a = MatMul(x, w) b = BatchNormalization(a, g, h, h, u) [last] y = MatMul(b, v)",
        "float[n,6,5] x",
        "float[n,6,4] y",
        weights,
    )
    assert gone(model, importance="bn_scale") == lowest(np.linalg.norm(weights["w"], axis=0), 3)
    assert "first" in notes(model)


def test_a_bias_may_stand_before_the_normalization() -> None:
    weights = {"w": normal(5, 6), "c": normal(6, seed=2), "g": GAMMAS[0], "v": normal(6, 4, seed=1)}
    weights |= {"h": np.zeros(6, np.float32), "u": np.ones(6, np.float32)}
    model = parse(
        "[first] a = MatMul(x, w) d = Add(a, c) b = BatchNormalization(d, g, h, h, u) [last] y = MatMul(b, v)",
        "float[n,5] x",
        "float[n,4] y",
        weights,
    )
    assert gone(model, importance="bn_scale") == lowest(np.abs(GAMMAS[0]), 3)


def half_pruned_gradient(one: ReaderView) -> Array:
    """|dL/dm| at m = 1/2 by differences, of L(m) = E|W diag(m - 1) x|^2 with x of this covariance."""

    def loss(mask: Array) -> float:
        weight = one.weight * (mask - 1)
        return float(np.trace(weight @ one.covariance @ weight.T))

    found = np.zeros(len(one.columns))
    for unit, columns in enumerate(one.columns):
        above, below = np.full(one.weight.shape[1], 0.5), np.full(one.weight.shape[1], 0.5)
        above[columns] += 0.01
        below[columns] -= 0.01
        found[unit] = abs(loss(above) - loss(below)) / 0.02
    return found


@pytest.mark.parametrize("columns", [1, 3])
def test_taylor_is_the_gradient_of_the_half_pruned_reader(columns: int) -> None:
    views = [view(columns, seed=seed)[0] for seed in (0, 1)]
    variances = [float(np.trace(one.weight @ one.covariance @ one.weight.T)) for one in views]
    expected = sum(half_pruned_gradient(one) / variance for one, variance in zip(views, variances, strict=True))
    np.testing.assert_allclose(taylor(views), expected, rtol=1e-6)


def test_taylor_of_a_model_is_that_of_its_readers_results() -> None:
    # The second and the third channel undo each other: both are large, and neither matters.
    w1 = normal(5, 3, seed=4)
    w1[2] = w1[1] * 1.1
    w2 = np.abs(normal(4, 5, seed=5)) + 0.5
    w2[:, 2] = -w2[:, 1]
    model = parse(
        "[first] a = Gemm<transB = 1>(x, w1) [last] y = Gemm<transB = 1>(a, w2)",
        "float[n,3] x",
        "float[n,4] y",
        {"w1": w1, "w2": w2},
    )
    x = normal(400, 3, seed=6)
    channels = x @ w1.T
    channels -= channels.mean(axis=0)
    results = channels @ w2.T
    expected = np.array([abs(np.mean((channels[:, [c]] * w2[:, c] * results).sum(axis=1))) for c in range(5)])
    energies = channels.var(axis=0) * np.square(w2).sum(axis=0)
    data = [{"x": x[begin : begin + 100]} for begin in range(0, 400, 100)]
    assert gone(model, ratio=0.4, data=data, importance="taylor") == lowest(expected, 2)
    assert gone(model, ratio=0.4, data=data, importance="energy") == lowest(energies, 2) != lowest(expected, 2)


def test_losses_in_a_given_order_are_what_no_fit_can_make_up_for() -> None:
    one, weight = view(2)
    variance = float(np.trace(weight @ one.covariance @ weight.T))
    found = eliminate_in_order(np.array([4, 0, 3]), [one])
    for count in (1, 2, 3):
        expected = loss_without(one, tuple(found.order[:count].tolist())) / variance
        assert found.costs[count - 1] == pytest.approx(expected, rel=1e-4)
    chosen = eliminate(group(), [one], 3)
    np.testing.assert_allclose(eliminate_in_order(chosen.order, [one]).costs, chosen.costs)


def test_units_go_in_turn_of_every_block() -> None:
    scores = np.array([0.3, 0.1, 0.2, 7.0, 9.0, 8.0])
    assert removal_order(group(2), scores, 2).tolist() == [1, 3, 2, 5]


class Own(ChannelSensitivity):
    """Says what it is told to, and keeps what it was asked."""

    def __init__(self, told: Callable[[ChannelGroup], Array]) -> None:
        self.told = told
        self.asked: list[tuple[ChannelGroup, int]] = []

    def losses(self, group: ChannelGroup, feeds: Sequence[object]) -> Array:
        self.asked.append((group, len(feeds)))
        return self.told(group)


PLAIN = two_branches("p = Relu(a)", "q = Relu(b)")


def test_a_users_own_measure_ranks() -> None:
    told = np.array([5.0, 0.5, 4.0, 0.1, 3.0, 0.2])
    own = Own(lambda _: told)
    data = [{"x": normal(1, 3, 4, 4)}] * 2
    assert gone(PLAIN, data=data, importance=own) == lowest(told, 3)
    ((asked, feeds),) = own.asked
    assert (asked.units, feeds) == (6, 2)
    assert {name: units.tolist() for name, units in asked.layers.items()} == {
        "left": [0, 1, 2, 3, 4, 5],
        "right": [0, 1, 2, 3, 4, 5],
    }
    assert gone(PLAIN, importance=Own(lambda _: told)) == lowest(told, 3)


@pytest.mark.parametrize(
    ("told", "words"),
    [
        (np.ones(5), r"Own\.losses of 'left': shape \[5\]; return one number for each of its 6 units"),
        (np.array([1, 2, 3, 4, 5, np.nan]), "negative or not finite"),
        (-np.ones(6), "negative or not finite"),
        (None, "return one number for each of its 6 units"),
        ("six", "could not convert"),
    ],
)
def test_what_a_users_own_measure_may_not_say(told: object, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        gone(PLAIN, importance=Own(lambda _: told))  # type: ignore[arg-type,return-value]
