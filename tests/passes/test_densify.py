"""Sparse constants as weights, and constants that Constant nodes hold in one of their other attributes."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import ModelProto, SparseTensorProto, helper, numpy_helper

import amct_onnx
from amct_onnx.errors import ModelError
from amct_onnx.graph import build, constant_array
from amct_onnx.rewrite import prepare
from amct_onnx.runtime.simulator import open_simulator
from tests.models import Array, initializers, normal, parse, run

FORMS = ("fake_quant", "qdq")


def pruned(*shape: int) -> Array:
    """Values of which about half are zero."""
    dense = normal(*shape, seed=1)
    dense[np.abs(dense) < 0.7] = 0
    return dense


def sparse(name: str, dense: Array, *, linear: bool) -> SparseTensorProto:
    values = numpy_helper.from_array(dense[dense != 0], name)
    places = np.flatnonzero(dense) if linear else np.argwhere(dense)
    return helper.make_sparse_tensor(
        values, numpy_helper.from_array(places.astype(np.int64), f"{name}.at"), dense.shape
    )


def with_sparse(nodes: str, inputs: str, dense: Array, *, linear: bool = True, opset: int = 13) -> ModelProto:
    proto = parse(nodes, inputs, "float[] y", opset=opset)
    proto.graph.sparse_initializer.append(sparse("w", dense, linear=linear))
    return proto


def twin(proto: ModelProto, dense: Array) -> ModelProto:
    """The same model with the weight stored as usual."""
    made = ModelProto()
    made.CopyFrom(proto)
    del made.graph.sparse_initializer[:]
    made.graph.initializer.append(numpy_helper.from_array(dense, "w"))
    return made


LAYERS = {
    "MatMul": ("MatMul(x, w)", [2, 6], (6, 5)),
    "MatMul on the left": ("MatMul(w, x)", [6, 2], (5, 6)),
    "Gemm": ("Gemm<transB = 1>(x, w)", [2, 6], (5, 6)),
    "Conv": ("Conv(x, w)", [1, 6, 3, 3], (5, 6, 1, 1)),
}


@pytest.mark.parametrize("linear", [True, False], ids=["linear indices", "coordinates"])
@pytest.mark.parametrize(("layer", "data", "shape"), LAYERS.values(), ids=LAYERS)
def test_same_results_as_with_a_dense_weight(layer: str, data: list[int], shape: tuple[int, ...], linear: bool) -> None:
    dense = pruned(*shape)
    proto = with_sparse(f"[L] y = {layer}", f"float[{','.join(map(str, data))}] x", dense, linear=linear)
    feed = {"x": normal(*data, seed=2)}
    np.testing.assert_allclose(run(proto, feed)[0], run(twin(proto, dense), feed)[0], rtol=1e-5, atol=1e-6)
    result = amct_onnx.quantize(proto, [feed], trial=False)
    expected = amct_onnx.quantize(twin(proto, dense), [feed], trial=False)
    assert result.record.layers == expected.record.layers
    assert not result.model("ascend").graph.sparse_initializer
    for form in FORMS:
        np.testing.assert_array_equal(run(result.model(form), feed)[0], run(expected.model(form), feed)[0])
    simulated = open_simulator(result.model("ascend")).run(None, feed)[0]
    np.testing.assert_array_equal(simulated, run(result.model("fake_quant"), feed, optimized=False)[0])


def test_before_a_transpose_and_with_a_raised_operator_set() -> None:
    dense = pruned(5, 6)
    proto = with_sparse("t = Transpose(w) [L] y = MatMul(x, t)", "float[2,6] x", dense, opset=11)
    feed = {"x": normal(2, 6, seed=2)}
    result = amct_onnx.quantize(proto, [feed], trial=False)
    assert set(result.record.layers) == {"L"}
    exact = feed["x"] @ dense.T
    for form in FORMS:
        assert np.abs(run(result.model(form), feed)[0] - exact).max() < 0.05 * np.abs(exact).max()


def test_result_of_a_constant_node() -> None:
    dense = pruned(6, 5)
    proto = parse("[L] y = MatMul(x, w)", "float[2,6] x", "float[2,5] y")
    value = sparse("", dense, linear=True)
    proto.graph.node.insert(0, helper.make_node("Constant", [], ["w"], sparse_value=value))
    built = build(prepare(proto, None).model).to_proto()
    assert [node.op_type for node in built.graph.node] == ["MatMul"]
    np.testing.assert_array_equal(initializers(built)["w"], dense)
    result = amct_onnx.quantize(proto, [normal(2, 6, seed=2)], trial=False)
    assert set(result.record.layers) == {"L"}


def test_inside_a_body() -> None:
    dense = pruned(6, 6)
    proto = parse(
        """[branch] y = If(c) <then_branch = one () => (float[2,6] t) { [L] t = MatMul(x, w) },
                               else_branch = two () => (float[2,6] e) { e = Identity(x) }>""",
        "float[2,6] x, bool c",
        "float[2,6] y",
    )
    branch = next(attribute.g for attribute in proto.graph.node[0].attribute if attribute.name == "then_branch")
    branch.sparse_initializer.append(sparse("w", dense, linear=True))
    feed = {"x": normal(2, 6, seed=2), "c": np.array(True)}
    result = amct_onnx.quantize(proto, [feed], trial=False)
    assert set(result.record.layers) == {"L"}
    exact = run(proto, feed)[0]
    assert np.abs(run(result.model("fake_quant"), feed)[0] - exact).max() < 0.05 * np.abs(exact).max()


def test_other_sparse_tensors_stay_as_they_are() -> None:
    dense = pruned(2, 6)
    proto = with_sparse("h = Sin(w) y = Add(h, x)", "float[2,6] x", dense)
    built = build(prepare(proto, None).model).to_proto()
    assert list(built.graph.sparse_initializer) == list(proto.graph.sparse_initializer)


@pytest.mark.parametrize("index", [-1, 30])
def test_indices_outside_the_shape_name_the_tensor(index: int) -> None:
    proto = with_sparse("[L] y = MatMul(x, w)", "float[2,6] x", pruned(6, 5))
    indices = numpy_helper.to_array(proto.graph.sparse_initializer[0].indices).copy()
    indices[0] = index
    proto.graph.sparse_initializer[0].indices.CopyFrom(numpy_helper.from_array(indices))
    (constant,) = prepare(proto, None).model.graph.initializers.values()
    with pytest.raises(ModelError, match="sparse tensor 'w' has indices that do not fit"):
        constant_array(constant)


CONSTANTS = {
    "floats": "w0 = Constant<value_floats = [1.0, 2.0, -3.0, 0.5]>() s = Constant<value_ints = [2, 2]>() "
    "w = Reshape(w0, s)",
    "ints": "w0 = Constant<value_ints = [1, 2, -3, 5]>() w1 = Cast<to = 1>(w0) s = Constant<value_ints = [2, 2]>() "
    "w = Reshape(w1, s)",
    "float": "w0 = Constant<value_float = 0.5>() s = Constant<value_ints = [2, 2]>() w = Expand(w0, s)",
    "int": "w0 = Constant<value_int = 3>() w1 = Cast<to = 1>(w0) s = Constant<value_ints = [2, 2]>() w = Expand(w1, s)",
}


@pytest.mark.parametrize("constants", CONSTANTS.values(), ids=CONSTANTS)
def test_weight_from_plain_attributes(constants: str) -> None:
    proto = parse(f"{constants} [L] y = MatMul(x, w)", "float[2,2] x", "float[2,2] y")
    feed = {"x": normal(2, 2, seed=2)}
    result = amct_onnx.quantize(proto, [feed], trial=False)
    assert set(result.record.layers) == {"L"}
    assert [node.op_type for node in result.model("ascend").graph.node] == ["AscendQuant", "MatMul", "AscendDequant"]
    exact = run(proto, feed)[0]
    for form in FORMS:
        assert np.abs(run(result.model(form), feed)[0] - exact).max() < 0.05 * np.abs(exact).max()


@pytest.mark.parametrize("value", ["value_floats = [1.0, 2.0, -3.0]", "value_float = 1.5", "value_floats = [1.5]"])
def test_bias_from_plain_attributes(value: str) -> None:
    proto = parse(f"b = Constant<{value}>() [L] y = Gemm(x, w, b)", "float[2,4] x", "float[2,3] y", {"w": normal(4, 3)})
    feed = {"x": normal(2, 4, seed=2)}
    result = amct_onnx.quantize(proto, [feed], trial=False)
    assert [node.op_type for node in result.model("ascend").graph.node] == ["AscendQuant", "Gemm", "AscendDequant"]
    exact = run(proto, feed)[0]
    for form in FORMS:
        assert np.abs(run(result.model(form), feed)[0] - exact).max() < 0.05 * np.abs(exact).max()
