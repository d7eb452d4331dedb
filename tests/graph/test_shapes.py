"""Shape inference without weights."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx

from amct_onnx.graph import read_model
from amct_onnx.graph.shapes import infer_shapes
from tests.models import normal, parse


def test_sizes_names_and_unknowns() -> None:
    model = parse(
        "s = Relu(x)  t = custom.Op(s)  y = Flatten(s)", "float[n, 3, 4] x", "float[p, q] y", domains='"custom": 1'
    )
    shapes = infer_shapes(model)
    assert shapes["s"] == ("n", 3, 4)
    assert shapes["y"] == ("p", 12)
    assert "t" not in shapes


def test_small_tensors_that_hold_shapes_count(tmp_path: Path) -> None:
    weights = {"w": normal(6, 300), "shape": np.array([-1, 6], np.int64)}
    model = parse("r = Reshape(x, shape)  y = MatMul(r, w)", "float[4, 3] x", "float[a, b] y", weights)
    assert infer_shapes(model)["r"] == (2, 6)
    path = tmp_path / "m.onnx"
    onnx.save_model(model, str(path), save_as_external_data=True, size_threshold=0)
    proto, folder = read_model(path)
    before = proto.SerializeToString()
    (tmp_path / "moved").mkdir()
    assert infer_shapes(proto, folder) == {"r": (2, 6), "x": (4, 3), "y": (2, 300)}
    assert "r" not in infer_shapes(proto) or infer_shapes(proto)["r"] != (2, 6)
    assert proto.SerializeToString() == before


def test_large_weights_are_not_needed(tmp_path: Path) -> None:
    weights = {"w": normal(6, 300)}
    path = tmp_path / "m.onnx"
    model = parse("y = MatMul(x, w)", "float[2, 6] x", "float[a, b] y", weights)
    onnx.save_model(model, str(path), save_as_external_data=True, location="m.data", size_threshold=0)
    (tmp_path / "m.data").unlink()
    assert infer_shapes(*read_model(path))["y"] == (2, 300)


def test_an_illegal_model_gives_what_it_declares() -> None:
    model = parse("s = Relu(x, x)  y = NoSuchOperator(s)", outputs="float[5, 5] y")
    assert infer_shapes(model)["y"] == (5, 5)
