"""What the planner decides beyond the algorithms."""

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

import amct_onnx
from amct_onnx.analyse.algorithms import choose_weight
from amct_onnx.errors import NothingToCompressError
from tests.models import parse


def two_convolutions():
    """Conv -> Softplus -> Conv."""
    rng = np.random.default_rng(0)
    weights = {"w1": rng.standard_normal((4, 3, 1, 1)), "w2": rng.standard_normal((2, 4, 1, 1))}
    initializers = [numpy_helper.from_array(value.astype(np.float32), name) for name, value in weights.items()]
    nodes = [
        helper.make_node("Conv", ["x", "w1"], ["a"], name="first"),
        helper.make_node("Softplus", ["a"], ["b"], name="between"),
        helper.make_node("Conv", ["b", "w2"], ["y"], name="second"),
    ]
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 3, 8, 8])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        initializers,
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)


FEED = np.random.default_rng(1).standard_normal((1, 3, 8, 8)).astype(np.float32)


def test_tensor_that_eight_bits_cannot_hold_stays_float_in_qdq_and_is_named(monkeypatch):
    monkeypatch.setattr("amct_onnx.analyse.planner.MINIMUM_PAIR_DB", 90.0)
    result = amct_onnx.quantize(two_convolutions(), [FEED], formats=["qdq"])
    assert result.tensors.layers == {}
    assert [r.node for r in result.report.refusals] == ["a", "y"]
    assert "dB" in result.report.refusals[0].reason
    assert [trial.error for trial in result.report.trials] == [None]


def test_sound_tensors_carry_pairs():
    result = amct_onnx.quantize(two_convolutions(), [FEED], formats=["qdq"])
    assert list(result.tensors.layers) == ["a", "y"]
    assert result.report.refusals == ()


def test_shared_weight_is_searched_once(monkeypatch):
    from amct_onnx.analyse import weight_scales

    searched = []

    def counting(options, weight, axis):
        searched.append(weight.shape)
        return choose_weight(options, weight, axis)

    monkeypatch.setattr(weight_scales, "choose_weight", counting)
    rng = np.random.default_rng(0)
    weights = {"w": rng.standard_normal((3, 3)).astype(np.float32)}
    model = parse("a = Gemm<transB = 1>(x, w) r = Relu(a) y = Gemm<transB = 1>(r, w)", weights=weights)
    result = amct_onnx.quantize(model, [rng.standard_normal((2, 3)).astype(np.float32)])
    assert len(result.record.layers) == 2
    assert searched == [(1, 9)]


def test_data_that_reaches_no_layer_is_refused():
    model = two_convolutions()
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "N"
    with pytest.raises(NothingToCompressError, match="no finite value"):
        amct_onnx.quantize(model, [np.full((1, 3, 8, 8), np.nan, np.float32)])
