"""Gemm in its one plain form: alpha, beta and transB folded into constants."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import ModelProto

from amct_onnx.graph import build, import_model, name_nodes
from amct_onnx.passes.fold_gemm import FoldGemm
from tests.models import Array, initializers, normal, parse, run, summary

FEED = {"x": normal(2, 3)}


def gemm(attributes: str, weights: dict[str, Array], bias: str = ", c") -> ModelProto:
    return parse(f"[g] y = Gemm{attributes}(x, w{bias})", outputs="float[2,4] y", weights=weights)


def folded(model: ModelProto, *names: str) -> ModelProto:
    graph = import_model(model)
    name_nodes(graph)
    FoldGemm(names or {"g"}).run(graph)
    return build(graph).to_proto()


@pytest.mark.parametrize("shape", [(4,), (1, 4), (1,), (), (1, 1)])
@pytest.mark.parametrize("transposed", [0, 1])
def test_numbers_stay_and_the_form_is_plain(transposed: int, shape: tuple[int, ...]) -> None:
    weights = {"w": normal(4, 3) if transposed else normal(3, 4), "c": np.asarray(normal(*shape, seed=1))}
    model = gemm(f"<alpha = 0.5, beta = 3.0, transB = {transposed}>", weights)
    proto = folded(model)
    (node,) = proto.graph.node
    assert not node.attribute
    arrays = initializers(proto)
    assert {name: array.shape for name, array in arrays.items()} == {"w": (3, 4), "c": (4,)}
    np.testing.assert_allclose(run(proto, FEED)[0], run(model, FEED)[0], rtol=1e-5, atol=1e-6)


def test_a_bias_of_one_value_is_spread_even_without_attributes() -> None:
    proto = folded(gemm("", {"w": normal(3, 4), "c": normal(1)}))
    np.testing.assert_array_equal(initializers(proto)["c"], np.repeat(normal(1), 4))


def test_no_bias() -> None:
    model = gemm("<alpha = 2.0>", {"w": normal(3, 4)}, bias="")
    np.testing.assert_allclose(run(folded(model), FEED)[0], run(model, FEED)[0], rtol=1e-6)


def test_a_plain_gemm_is_not_touched() -> None:
    model = gemm("<alpha = 1.0, beta = 1.0, transB = 0>", {"w": normal(3, 4), "c": normal(4)})
    assert folded(model) == model


def test_only_the_named_nodes_are_folded() -> None:
    model = gemm("<alpha = 2.0>", {"w": normal(3, 4), "c": normal(4)})
    assert folded(model, "other") == model


def shared(first: str, second: str, more: str = "") -> ModelProto:
    nodes = f"[g1] s = Gemm{first}(x, w)  [g2] t = Gemm{second}(x, w)  y = Add(s, t) {more}"
    return parse(nodes, outputs="float[2,3] y", weights={"w": normal(3, 3)})


def test_a_weight_shared_with_another_orientation() -> None:
    model = shared("<transB = 1>", "")
    proto = folded(model, "g1", "g2")
    assert summary(proto.graph.node)[:2] == ["g1: Gemm(x, w_1) -> s", "g2: Gemm(x, w) -> t"]
    np.testing.assert_allclose(run(proto, FEED)[0], run(model, FEED)[0], rtol=1e-5, atol=1e-6)


def test_a_weight_shared_alike_stays_shared_under_its_name() -> None:
    model = shared("<transB = 1>", "<transB = 1>")
    proto = folded(model, "g1", "g2")
    assert initializers(proto).keys() == {"w"}
    np.testing.assert_allclose(run(proto, FEED)[0], run(model, FEED)[0], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("names", [("g1",), ("g1", "g2")])
def test_a_weight_that_another_operator_reads(names: tuple[str, ...]) -> None:
    model = shared("<transB = 1>", "<transB = 1>", "u = Abs(w)")
    model.graph.output.append(parse("u = Relu(x)", outputs="float[3,3] u").graph.output[0])
    for expected, got in zip(run(model, FEED), run(folded(model, *names), FEED), strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-6)


def test_what_else_a_node_says_stays() -> None:
    model = gemm("<alpha = 2.0>", {"w": normal(3, 4), "c": normal(4)})
    model.graph.node[0].doc_string = "kept"
    assert folded(model).graph.node[0].doc_string == "kept"
