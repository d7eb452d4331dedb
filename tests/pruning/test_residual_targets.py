"""Layers in residual sums are fitted to what the other operand lost, too."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import ModelProto

import amct_onnx
from amct_onnx.analyse.fitting.refit import RefitLayer, _other_operands
from amct_onnx.analyse.fitting.targets import other_operands
from tests.models import Array, imported, node_named, normal, parse, run

_WEIGHTS = {
    "w": np.diag([3.0, 4.0, 5.0, 6.0]).astype(np.float32),
    "v": normal(4, 3, seed=2),
    "k": normal(4, 8, seed=3),
    "q": normal(8, 3, seed=4) / 4,
    "c": normal(3, seed=5),
}
_FIRST = "[first] h = MatMul(x, w) [narrow] p = MatMul(h, v)"
_SECOND = "[second] g = MatMul(x, k) [wide] r = MatMul(g, q)"


def two_branches(body: str, outputs: str = "float[n,3] y") -> ModelProto:
    return parse(body, "float[n,4] x", outputs, _WEIGHTS)


def feeds() -> list[dict[str, Array]]:
    return [{"x": normal(32, 4, seed=index)} for index in range(6)]


@pytest.mark.parametrize("summed", ["y = Add(p, r)", "y = Add(r, p)", "t = Add(r, c) y = Add(p, t)"])
def test_a_branch_makes_up_for_what_the_other_lost(summed: str) -> None:
    # Of 4 numbers the first branch keeps 2; 4 of 8 mixtures of them still tell the second one everything.
    both = loss(f"{_FIRST} {_SECOND} {summed}", {"narrow", "wide"})
    assert both < 0.1 * loss(f"{_FIRST} y = Add(p, c)", {"narrow"})


def loss(body: str, fitted: set[str]) -> float:
    source = two_branches(body)
    result = amct_onnx.prune(source, feeds(), ratio=0.5)
    assert set(result.report.fitted) == fitted
    fed = {"x": normal(64, 4, seed=90)}
    want, got = (run(proto, fed)[0] for proto in (source, result.model.to_proto()))
    return float(np.square(got - want).mean())


def others(body: str, stages: list[list[str]], outputs: str = "float[n,3] y") -> dict[str, str]:
    model = imported(two_branches(body, outputs))
    return other_operands(model.graph, [[node_named(model, name) for name in names] for names in stages])


def test_what_is_fitted_later_is_no_target() -> None:
    body = f"{_FIRST} {_SECOND} y = Add(p, r)"
    assert others(body, [["narrow"], ["wide"]]) == {"wide": "p"}
    assert others(body, [["narrow", "wide"]]) == {}
    assert others(body, [["wide"]]) == {"wide": "p"}


def test_results_that_something_else_reads_are_fitted_to_themselves() -> None:
    stages = [["narrow"], ["wide"]]
    assert others(f"{_FIRST} {_SECOND} y = Add(p, r) z = Relu(r)", stages, "float[n,3] y, float[n,3] z") == {}
    assert others(f"{_FIRST} {_SECOND} y = Add(p, r)", stages, "float[n,3] y, float[n,3] r") == {}
    assert others(f"{_FIRST} {_SECOND} t = Relu(r) y = Add(p, t)", stages) == {}
    assert others(f"{_FIRST} {_SECOND} y = Add(r, r)", stages) == {}


def test_an_operand_that_is_broadcast_is_no_target() -> None:
    body = f"{_FIRST} m = ReduceMean<axes = [0], keepdims = 1>(p) {_SECOND} y = Add(m, r)"
    alone = amct_onnx.prune(two_branches(body), feeds(), ratio=0.5)
    whole = two_branches(f"{_SECOND} y = Relu(r)")
    single = amct_onnx.prune(whole, feeds(), ratio=0.5)

    def fitted(proto: ModelProto) -> Array:
        model = imported(proto)
        return np.asarray(node_named(model, "wide").inputs[1].values)

    np.testing.assert_allclose(fitted(alone.model.to_proto()), fitted(single.model.to_proto()), rtol=1e-5)


def test_a_mask_of_infinities_loses_nothing() -> None:
    # What is masked away is as far below all else in the float model as in the pruned one.
    masked = "i = Where(m, p, low) y0 = Add(i, r) y = Exp(y0)"
    weights = {**_WEIGHTS, "m": np.array([[True, False, True]]), "low": np.float32(-np.inf)}
    weights.pop("c")
    body = f"{_FIRST} {_SECOND} {masked}"
    source = parse(body, "float[n,4] x", "float[n,3] y", {**weights, "v": _WEIGHTS["v"] / 9, "q": _WEIGHTS["q"] / 9})
    result = amct_onnx.prune(source, feeds(), ratio=0.5)
    assert set(result.report.fitted) == {"narrow", "wide"}
    assert not any("left out" in note for note in result.report.notes)


def test_what_layers_that_are_one_give_is_not_final_before_they_are_fitted() -> None:
    body = """[a] p = MatMul(x, k) [b] r = MatMul(x, k) y0 = Add(p, r) [wide] t = MatMul(y0, q) y1 = MatMul(r, q)
              y = Add(t, y1)"""
    model = imported(two_branches(body))
    wide, *shared = (node_named(model, name) for name in ("wide", "a", "b"))
    one = RefitLayer(shared[0], np.ones(8, np.bool_), (shared[1],))
    last = RefitLayer(wide, np.ones(3, np.bool_))
    assert _other_operands(model, [[one], [last]]) == {"wide": "y1"}
    assert _other_operands(model, [[last], [one]]) == {}
