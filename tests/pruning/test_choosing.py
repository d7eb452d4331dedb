"""How many channels go, and which: documented values, and brute force in numpy."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np
import pytest

from amct_onnx.analyse.allocation import Offer, allocate, allocate_whole, give_back
from amct_onnx.analyse.fitting.moments import Moments, ridge_fit
from amct_onnx.analyse.pruning.counts import channels_kept
from amct_onnx.analyse.pruning.elimination import ReaderView, eliminate, eliminate_in_order
from amct_onnx.analyse.pruning.importance import balanced_l2, removal_order
from amct_onnx.analyse.pruning.scores import energy, taylor
from amct_onnx.analyse.pruning.search import removal_counts, scaled_to
from amct_onnx.api.prune import prune_groups
from amct_onnx.passes.pruning.groups import Group
from tests.models import Array, normal, parse


@pytest.mark.parametrize(
    ("count", "ratio", "aligned", "groups", "kept"),
    [
        (32, 0.3, False, 1, 22),
        (32, 0.3, True, 1, 32),
        (64, 0.5, True, 1, 32),
        (20, 0.25, True, 1, 16),
        (20, 0.25, False, 1, 15),
        (10, 0.25, False, 1, 8),
        (10, 0.35, False, 1, 6),
        (5, 0.5, False, 1, 3),
        (7, 0.5, False, 1, 3),
        (8, 0.05, False, 1, 8),
        (100, 0.99, True, 1, 16),
        # AMCT's 30 is no multiple of 16; here alignment holds with groups, too.
        (48, 0.5, True, 3, 48),
        (12, 0.4, False, 4, 4),
        (8, 0.9, False, 4, 4),
    ],
)
def test_channels_kept(count: int, ratio: float, aligned: bool, groups: int, kept: int) -> None:
    assert channels_kept(count, ratio, aligned=aligned, groups=groups) == kept


def group(blocks: int = 1, size: int = 6) -> Group:
    units = np.arange(1, size + 1)
    return Group((), units, np.ones(size, np.bool_), np.repeat(np.arange(blocks), size // blocks), (), "", ())


@pytest.mark.parametrize(("blocks", "kept"), [(1, [1, 0, 1, 0, 1, 0]), (2, [1, 0, 0, 0, 1, 0])])
def test_the_lowest_norms_go_of_every_block(blocks: int, kept: list[int]) -> None:
    rows = np.array([0.9, 0.1, 0.5, 0.3, 0.7, 0.2])[:, None] * np.ones((1, 4))
    per_block = (6 - (channels_kept(6, 0.5, groups=blocks))) // blocks
    gone = removal_order(group(blocks), balanced_l2(rows), per_block)
    assert [int(index not in gone) for index in range(6)] == kept


def test_norms_are_brought_to_one_range_and_equal_ones_say_nothing() -> None:
    rows = np.array([[3.0, 4.0], [0.0, 0.0], [6.0, 8.0]])
    np.testing.assert_allclose(balanced_l2(rows), [0.5, 0.0, 1.0])
    np.testing.assert_array_equal(balanced_l2(np.ones((3, 2))), np.zeros(3))
    assert removal_order(group(), np.zeros(6), 2).tolist() == [0, 1]


def view(columns_per_unit: int, seed: int = 0) -> tuple[ReaderView, Array]:
    """Six units that hang together, as a layer with three results reads them."""
    rng = np.random.default_rng(seed)
    size = 6 * columns_per_unit
    mixing = rng.normal(size=(size, size))
    covariance = mixing @ mixing.T / size
    columns = [np.arange(unit * columns_per_unit, (unit + 1) * columns_per_unit) for unit in range(6)]
    weight = rng.normal(size=(3, size))
    return ReaderView(weight, covariance, np.full(size, 1e-9), columns), weight


def loss_without(one: ReaderView, gone: tuple[int, ...]) -> float:
    """Variance of what no fit of the other columns can make up for: the conditional covariance of those that go."""
    out = np.concatenate([one.columns[unit] for unit in gone])
    stay = np.setdiff1d(np.arange(len(one.covariance)), out)
    c = one.covariance
    conditional = c[np.ix_(out, out)] - c[np.ix_(out, stay)] @ np.linalg.solve(
        c[np.ix_(stay, stay)], c[np.ix_(stay, out)]
    )
    return float(np.trace(one.weight[:, out] @ conditional @ one.weight[:, out].T))


@pytest.mark.parametrize("columns", [1, 3])
def test_elimination_knows_what_a_fit_cannot_make_up_for(columns: int) -> None:
    one, weight = view(columns)
    found = eliminate(group(), [one], 3)
    variance = float(np.trace(weight @ one.covariance @ weight.T))
    singles = [loss_without(one, (unit,)) for unit in range(6)]
    assert found.order[0] == int(np.argmin(singles))
    for count in (1, 2, 3):
        gone = tuple(found.order[:count].tolist())
        assert found.costs[count - 1] == pytest.approx(loss_without(one, gone) / variance, rel=1e-4)
    best = min(loss_without(one, pair) for pair in itertools.combinations(range(6), 2))
    assert found.costs[1] * variance <= 2 * best


@pytest.mark.parametrize("importance", ["fitted", "in order"])
def test_units_that_go_in_one_round_cost_what_they_do_one_after_the_other(importance: str) -> None:
    size, blocks = 60, 2
    rng = np.random.default_rng(3)
    mixing = rng.normal(size=(2 * size, 4 * size))
    covariance = mixing @ mixing.T / size
    # Some units have two columns, some one, some none.
    columns = [np.arange(2 * unit, 2 * unit + unit % 3) for unit in range(size)]
    one = ReaderView(rng.normal(size=(4, 2 * size)), covariance, np.full(2 * size, 1e-9), columns)
    found = eliminate(group(blocks, size), [one], 28)
    if importance == "in order":
        found = eliminate_in_order(rng.permutation(size)[:56], [one])
    variance = float(np.trace(one.weight @ covariance @ one.weight.T))
    for count in (1, 3, 10, 33, 56):
        expected = loss_without(one, tuple(found.order[:count].tolist())) / variance
        assert found.costs[count - 1] == pytest.approx(expected, rel=1e-6, abs=1e-12)


def test_a_view_counts_for_all_layers_that_it_stands_for() -> None:
    one, other = view(1)[0], view(1, seed=1)[0]
    thrice = eliminate(group(), [replace(one, readers=3), other], 3)
    spelled_out = eliminate(group(), [one, one, one, other], 3)
    np.testing.assert_array_equal(thrice.order, spelled_out.order)
    np.testing.assert_allclose(thrice.costs, spelled_out.costs)
    for score in (energy, taylor):
        np.testing.assert_allclose(score([replace(one, readers=3), other]), score([one, one, one, other]))


def test_at_every_count_as_many_of_each_block_are_gone() -> None:
    size = 60
    one = view(1)[0]
    wide = ReaderView(
        np.tile(one.weight, 10), np.eye(size), np.full(size, 1e-9), [np.arange(u, u + 1) for u in range(size)]
    )
    found = eliminate(group(2, size), [wide], 28)
    for count in range(1, 29):
        np.testing.assert_array_equal(np.bincount(found.order[: 2 * count] // 30), [count, count])


def test_moments_do_not_depend_on_how_the_rows_come() -> None:
    x, y = normal(40, 5), normal(40, 2, seed=1)
    whole, parts = Moments(), Moments()
    whole.update(x, y)
    for begin in range(0, 40, 7):
        parts.update(x[begin : begin + 7], y[begin : begin + 7])
    np.testing.assert_allclose(parts.covariance, whole.covariance, atol=1e-12)
    np.testing.assert_allclose(whole.covariance, np.cov(x.T, bias=True), atol=1e-6)
    np.testing.assert_allclose(whole.result_variance, y.var(axis=0), atol=1e-6)


def test_rows_that_are_not_finite_are_left_out() -> None:
    x, y = normal(10, 3), normal(10, 2, seed=1)
    bad, clean = Moments(), Moments()
    clean.update(x[1:], y[1:])
    x[0, 1] = np.nan
    bad.update(x, y)
    np.testing.assert_array_equal(bad.covariance, clean.covariance)
    assert bad.rows == 9


def test_a_fit_finds_the_weights_that_made_the_results() -> None:
    rng = np.random.default_rng(2)
    x, truth, shift = rng.normal(size=(4000, 6)), rng.normal(size=(3, 6)), rng.normal(size=3)
    moments = Moments()
    moments.update(x, x @ truth.T + shift)
    weight, bias = ridge_fit(moments, truth + 0.1, 1e-6)
    np.testing.assert_allclose(weight, truth, atol=2e-2)
    np.testing.assert_allclose(bias, shift, atol=2e-2)


def test_without_data_to_speak_of_a_fit_stays_near_its_weights() -> None:
    moments = Moments()
    moments.update(np.array([[1.0, 0, 0, 0], [0, 1, 0, 0]]), np.array([[5.0], [-5.0]]))
    weight, _ = ridge_fit(moments, np.ones((1, 4)), 1e-2)
    np.testing.assert_allclose(weight[:, 2:], np.ones((1, 2)), atol=1e-6)


def test_steps_are_taken_where_they_lose_least_for_what_they_save() -> None:
    offers = {
        "cheap": Offer(np.array([0.1, 0.3, 0.9]), np.array([10.0, 20.0, 30.0])),
        "dear": Offer(np.array([1.0, 2.0, 3.0]), np.array([10.0, 20.0, 30.0])),
        "large": Offer(np.array([0.5, 5.0, 9.0]), np.array([100.0, 200.0, 300.0])),
    }
    assert allocate(offers, 20.0) == {"cheap": 0, "dear": 0, "large": 1}
    assert allocate(offers, 120.0) == {"cheap": 2, "dear": 0, "large": 1}
    assert allocate(offers, 1e9) == {"cheap": 3, "dear": 3, "large": 3}


def test_a_group_that_goes_at_once_is_not_taken_for_its_price_alone() -> None:
    offers = {
        "large": Offer(np.array([1.0]), np.array([100.0])),
        "small": Offer(np.array([0.2]), np.array([10.0])),
        "tiny": Offer(np.array([0.1]), np.array([4.0])),
        "idle": Offer(np.array([0.0]), np.array([0.0])),
    }
    assert allocate_whole(offers, 10.0) == {"large": 0, "small": 1, "tiny": 0, "idle": 0}
    assert allocate_whole(offers, 14.0) == {"large": 0, "small": 1, "tiny": 1, "idle": 0}
    assert allocate_whole(offers, 15.0) == {"large": 1, "small": 0, "tiny": 0, "idle": 0}
    assert allocate_whole(offers, 111.0) == {"large": 1, "small": 1, "tiny": 1, "idle": 0}
    assert allocate_whole(offers, 1e9) == {"large": 1, "small": 1, "tiny": 1, "idle": 0}
    assert allocate(offers, 10.0)["large"] == 1


@pytest.mark.parametrize("seed", range(20))
def test_groups_that_go_at_once_lose_at_most_twice_the_least(seed: int) -> None:
    rng = np.random.default_rng(seed)
    losses, savings = rng.pareto(1.0, 9), rng.pareto(1.0, 9)
    offers = {f"g{n}": Offer(losses[n : n + 1], savings[n : n + 1]) for n in range(9)}
    choices = np.array(list(itertools.product([0, 1], repeat=9)))
    for target in np.array([0.05, 0.2, 0.5, 0.8]) * savings.sum():
        least = (choices @ losses)[choices @ savings >= target].min()
        taken = np.array(list(allocate_whole(offers, target).values()))
        assert taken @ savings >= target
        assert taken @ losses <= 2 * least + 1e-12


def test_steps_that_are_not_needed_are_given_back_the_dearest_first() -> None:
    offers = {
        "dear": Offer(np.array([1.0, 4.0]), np.array([10.0, 20.0])),
        "cheap": Offer(np.array([0.1, 0.2]), np.array([10.0, 20.0])),
        "large": Offer(np.array([2.0]), np.array([100.0])),
    }

    def enough(target: float) -> Callable[[Mapping[str, int]], bool]:
        return lambda steps: sum(offers[name].savings[step - 1] for name, step in steps.items() if step) >= target

    taken = {"dear": 2, "cheap": 2, "large": 1}
    assert give_back(offers, taken, enough(140)) == taken
    assert give_back(offers, taken, enough(125)) == {"dear": 1, "cheap": 2, "large": 1}
    assert give_back(offers, taken, enough(110)) == {"dear": 0, "cheap": 1, "large": 1}
    assert give_back(offers, taken, enough(20)) == {"dear": 0, "cheap": 2, "large": 0}


@pytest.mark.parametrize(
    ("size", "blocks", "alignment", "most", "counts"),
    [
        (32, 1, 8, 0.75, [8, 16, 24]),
        (36, 1, 8, 0.75, [4, 12, 20]),
        (12, 1, 16, 0.75, []),
        (24, 2, 8, 0.75, [4, 8]),
        (10, 1, 1, 0.75, [1, 2, 3, 4, 5, 6, 7]),
        # One of each block stays, whatever may go; 0.29 of 100 are 29, though their product is a little less.
        (32, 1, 16, 1.0, [16]),
        (12, 2, 1, 1.0, [1, 2, 3, 4, 5]),
        (6, 1, 1, 0.5, [1, 2, 3]),
        (6, 1, 1, 0.1, []),
        (100, 1, 71, 0.29, [29]),
    ],
)
def test_counts_leave_a_multiple(size: int, blocks: int, alignment: int, most: float, counts: list[int]) -> None:
    assert removal_counts(group(blocks, size), 1, alignment, most) == counts


def test_an_estimate_passes_through_what_was_measured() -> None:
    got = scaled_to(np.array([0.0, 1.0, 3.0, 6.0]), [2, 4], [0.5, 4.5])
    np.testing.assert_allclose(got, [0.0, 0.5, 0.5 + 4 * 2 / 5, 4.5])
    # A loss does not shrink when more goes, whatever was measured.
    assert (np.diff(scaled_to(np.array([1.0, 2.0, 3.0]), [1, 3], [2.0, 1.0])) >= 0).all()


def test_a_weight_that_layers_share_is_one() -> None:
    model = parse(
        "[left] p = MatMul(x, w) [right] q = MatMul(z, w) s = Add(p, q) [last] y = MatMul(s, v)",
        "float[n,8] x, float[n,8] z",
        "float[n,4] y",
        {"w": normal(8, 6), "v": normal(6, 4)},
    )
    shared, _ = prune_groups(model).groups
    assert shared.layers == ("left", "right")
    assert (shared.parameters, shared.multiply_adds) == (8 * 6 + 6 * 4, 2 * 8 * 6 + 6 * 4)
