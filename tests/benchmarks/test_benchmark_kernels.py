from __future__ import annotations

from pathlib import Path

import onnx
import pytest

from benchmarks import kernels

FLOAT = """
<ir_version: 8, opset_import: ["" : 17]>
model (float[N, 4] x) => (float[N, 2] y) <float[4, 2] w = {1, 2, 3, 4, 5, 6, 7, 8}> {
    y = MatMul (x, w)
}
"""
INTEGER = """
<ir_version: 8, opset_import: ["" : 17]>
model (float[N, 4] x) => (float[N, 2] y)
<float s = {0.1}, uint8 z = {128}, int8 zw = {0}, int8[4, 2] w = {1, 2, 3, 4, 5, 6, 7, 8}> {
    q = QuantizeLinear (x, s, z)
    d = DequantizeLinear (q, s, z)
    f = DequantizeLinear (w, s, zw)
    m = MatMul (d, f)
    p = QuantizeLinear (m, s, z)
    y = DequantizeLinear (p, s, z)
}
"""


@pytest.mark.parametrize(("text", "counts"), [(FLOAT, "0/1"), (INTEGER, "1/1")])
def test_only_kernels_that_run_in_integers_count(text: str, counts: str, tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    onnx.save(onnx.parser.parse_model(text), path)
    assert str(kernels.count(path)) == counts
