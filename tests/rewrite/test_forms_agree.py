"""Every form computes the same layer: fed the same quantized input, QDQ and fake-quant differ by float noise only."""

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from amct_onnx.passes.insert_qdq import QdqTarget
from amct_onnx.passes.quant_params import LayerQuant, TensorQuant
from amct_onnx.rewrite import OutputForm, prepare, rewrite
from amct_onnx.runtime import fetch, open_session

CASES = {
    "conv": ("Conv", [2, 3, 7, 7], [4, 3, 3, 3], {"pads": [1, 1, 1, 1]}),
    "conv depthwise": ("Conv", [1, 4, 6, 6], [4, 1, 3, 3], {"group": 4, "pads": [1, 1, 1, 1]}),
    "conv 1-D grouped": ("Conv", [2, 4, 9], [6, 2, 3], {"group": 2}),
    "gemm": ("Gemm", [5, 7], [3, 7], {"transB": 1, "alpha": 0.5, "beta": 2.0}),
    "matmul and bias": ("MatMul", [2, 5, 7], [7, 3], {}),
    "pool": ("AveragePool", [1, 3, 8, 8], None, {"kernel_shape": [2, 2]}),
}


def layer_model(case, rng):
    op, shape, weight_shape, attrs = CASES[case]
    weights = {}
    if weight_shape:
        channels = weight_shape[1] if op == "MatMul" else weight_shape[0]
        weights = {"w": rng.standard_normal(weight_shape), "b": rng.standard_normal(channels)}
    if op == "MatMul":
        nodes = [
            helper.make_node("MatMul", ["x", "w"], ["p"], name="layer"),
            helper.make_node("Add", ["p", "b"], ["y"], name="bias"),
        ]
    else:
        nodes = [helper.make_node(op, ["x", *weights], ["y"], name="layer", **attrs)]
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(value.astype(np.float32), name) for name, value in weights.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8), weights


@pytest.mark.parametrize("target", list(QdqTarget))
@pytest.mark.parametrize("per_channel", [True, False], ids=["per channel", "per tensor"])
@pytest.mark.parametrize("case", CASES)
def test_qdq_layer_equals_fake_quant_layer(case, per_channel, target):
    rng = np.random.default_rng(list(CASES).index(case))
    proto, weights = layer_model(case, rng)
    channels = weights["b"].size if weights else 1
    scale = rng.uniform(0.02, 0.04, channels if per_channel else 1) if weights else np.ones(1)
    offset = 0 if target is QdqTarget.TENSORRT else 23
    quants = {"layer": LayerQuant(TensorQuant(0.017, offset), scale.astype(np.float32))}
    prepared = prepare(proto, None)
    feed = {"x": rng.standard_normal(CASES[case][1]).astype(np.float32)}
    outputs = {}
    for form in (OutputForm.FAKE_QUANT, OutputForm.QDQ):
        built, _ = rewrite(prepared, quants, form, target=target)
        session = open_session(built.to_proto(), optimize=False)
        outputs[form] = fetch(session, ["y"], feed)[0].copy()
    reference = np.abs(outputs[OutputForm.FAKE_QUANT]).max()
    np.testing.assert_allclose(outputs[OutputForm.QDQ], outputs[OutputForm.FAKE_QUANT], rtol=0, atol=2e-6 * reference)
