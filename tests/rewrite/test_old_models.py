"""Models from the time when every initializer was an input as well."""

import numpy as np
import onnx
import pytest

import amct_onnx
from tests.models import parse


@pytest.mark.parametrize("form", ["fake_quant", "qdq"])
def test_ir_version_3_source_gives_legal_models(form):
    rng = np.random.default_rng(0)
    weights = {"w": rng.standard_normal((3, 3)).astype(np.float32), "b": np.ones(3, np.float32)}
    source = parse("y = Gemm (x, w, b)", weights=weights, opset=11)
    source.ir_version = 3
    for name, shape in (("w", [3, 3]), ("b", [3])):
        source.graph.input.append(onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, shape))
    onnx.checker.check_model(source)
    result = amct_onnx.quantize(source, [rng.standard_normal((2, 3)).astype(np.float32)], formats=[form])
    made = result.model(form)
    onnx.checker.check_model(made)
    assert [info.name for info in made.graph.input] == ["x"]
    assert result.report.trials[0].snr_db > 30
