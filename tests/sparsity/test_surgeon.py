"""Choosing pairs of weights by what their loss costs, against every choice there is and against least squares."""

from __future__ import annotations

from itertools import combinations, product

import numpy as np
import pytest
from numpy.typing import NDArray

from amct_onnx.analyse.sparsity.surgeon import Thinned, settle, take_in_turn, thin_out

Matrix = NDArray[np.float64]


def problem(rows: int, columns: int, seed: int) -> tuple[Matrix, Matrix]:
    """A weight, and a covariance of columns that hang together and vary more or less, as activations do."""
    rng = np.random.default_rng(seed)
    spread = rng.normal(size=(columns, columns)) * np.exp(rng.normal(size=columns))
    mixed = rng.normal(size=(3 * columns, columns)) @ spread
    return rng.normal(size=(rows, columns)), mixed.T @ mixed / len(mixed) + 1e-3 * np.eye(columns)


def error(weight: Matrix, best: Matrix, hessian: Matrix) -> float:
    return float(np.sum(((weight - best) @ hessian) * (weight - best)))


def fitted(mask: NDArray[np.bool_], best: Matrix, hessian: Matrix) -> Matrix:
    """Least squares over what a mask keeps, through the Cholesky factor of the covariance."""
    root = np.linalg.cholesky(hessian).T
    found = np.zeros_like(best)
    for row, kept in enumerate(mask):
        found[row, kept] = np.linalg.lstsq(root[:, kept], root @ best[row], rcond=None)[0]
    return found


def test_one_group_loses_the_pair_that_costs_least() -> None:
    best, hessian = problem(20, 4, seed=1)
    found = thin_out(best, hessian, [np.arange(4)])
    for row in range(20):
        losses = []
        for gone in combinations(range(4), 2):
            mask = np.ones((1, 4), np.bool_)
            mask[0, list(gone)] = False
            losses.append(error(fitted(mask, best[row : row + 1], hessian), best[row : row + 1], hessian))
        assert error(found.weight[row : row + 1], best[row : row + 1], hessian) == pytest.approx(min(losses))


def test_a_last_group_of_three_loses_one_and_of_two_none() -> None:
    best, hessian = problem(8, 9, seed=2)
    groups = [np.array([0, 2, 4, 6]), np.array([1, 3]), np.array([5, 7, 8])]
    found = thin_out(best, hessian, groups)
    assert [set(found.mask[:, group].sum(axis=1).tolist()) for group in groups] == [{2}, {2}, {2}]
    assert not found.weight[~found.mask].any()
    assert found.weight[found.mask].all()


def test_it_loses_less_than_the_smallest_weights_do() -> None:
    best, hessian = problem(24, 48, seed=3)
    groups = [np.arange(begin, begin + 4) for begin in range(0, 48, 4)]
    by_size = np.zeros(best.shape, np.bool_)
    order = np.argsort(-np.abs(best.reshape(24, 12, 4)), axis=2)[:, :, :2] + 4 * np.arange(12)[None, :, None]
    np.put_along_axis(by_size, order.reshape(24, -1), True, axis=1)
    whole = thin_out(best, hessian, groups)
    losses = [error(w, best, hessian) for w in (best * by_size, fitted(by_size, best, hessian), whole.weight)]
    assert losses[2] < 0.5 * losses[1] < losses[0]


def test_several_orders_and_settling_lose_less_than_one_order() -> None:
    best, hessian = problem(24, 48, seed=3)
    groups = [np.arange(begin, begin + 4) for begin in range(0, 48, 4)]
    once = take_in_turn(best, np.linalg.inv(hessian), groups[::-1])
    assert (once.mask.reshape(24, 12, 4).sum(axis=2) == 2).all()
    settled = settle(once, best, hessian)
    whole = thin_out(best, hessian, groups)
    assert error(whole.weight, best, hessian) < error(once.weight, best, hessian)
    assert error(settled.weight, best, hessian) < error(once.weight, best, hessian)


def test_settled_weights_are_the_least_squares_ones() -> None:
    best, hessian = problem(10, 16, seed=4)
    mask = np.tile(np.array([True, False, False, True]), (10, 4))
    whole = settle(Thinned(np.where(mask, best, 0.0), mask), best, hessian)
    np.testing.assert_allclose(whole.weight, fitted(mask, best, hessian), rtol=1e-6, atol=1e-8)


def test_of_few_groups_it_comes_near_the_best_of_all_choices() -> None:
    best, hessian = problem(1, 8, seed=5)
    choices = list(combinations(range(4), 2))
    losses = []
    for first, second in product(choices, choices):
        mask = np.zeros((1, 8), np.bool_)
        mask[0, [*first, *(4 + place for place in second)]] = True
        losses.append(error(fitted(mask, best, hessian), best, hessian))
    found = thin_out(best, hessian, [np.arange(4), np.arange(4, 8)])
    loss = error(found.weight, best, hessian)
    # Of 36 choices it finds one of the best three: one group after the other is not all at once.
    assert loss <= sorted(losses)[2] * (1 + 1e-9)
