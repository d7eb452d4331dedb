"""A model that pruning broke is not given out."""

from __future__ import annotations

import numpy as np
import pytest

from amct_onnx.api.prune_check import check_runs
from amct_onnx.errors import ModelError
from amct_onnx.graph import build
from tests.models import imported, normal, parse

SOURCE = parse("y = MatMul(x, w)", "float[n,4] x", "float[n,3] y", {"w": normal(4, 3)})
FEED = {"x": normal(2, 4)}


def test_what_runs_as_before_passes() -> None:
    check_runs(build(imported(SOURCE)), SOURCE, None, FEED)


@pytest.mark.parametrize(
    ("nodes", "weight", "words"),
    [("y = MatMul(x, w)", normal(5, 3), "does not run"), ("y = MatMul(x, w)", normal(4, 2), r"shapes \[\[\(2, 2\)\]")],
)
def test_what_does_not_is_refused(nodes: str, weight: object, words: str) -> None:
    broken = parse(nodes, "float[n,4] x", "float[n,k] y", {"w": weight})  # type: ignore[dict-item]
    with pytest.raises(ModelError, match=words):
        check_runs(build(imported(broken)), SOURCE, None, FEED)


def test_a_shape_that_fits_one_batch_only_is_found() -> None:
    fixed = parse(
        "s = MatMul(x, w) y = Reshape(s, two)", "float[n,4] x", "float[n,k] y", {"w": normal(4, 3), "two": normal(2)}
    )
    fixed.graph.initializer[1].ClearField("raw_data")
    fixed.graph.initializer[1].data_type = 7
    fixed.graph.initializer[1].int64_data.extend([2, 3])
    with pytest.raises(ModelError, match="does not run"):
        check_runs(build(imported(fixed)), SOURCE, None, FEED)


BOXES = "s = MatMul(x, w) t = Transpose<perm=[0, 2, 1]>(s) y = NonMaxSuppression(b, t, most, least, floor)"
BOX_SCALARS = {
    "w": np.eye(2, dtype=np.float32),
    "b": np.array([[[0, 0, 1, 1], [5, 5, 6, 6]]], np.float32),
    "most": np.array([9]),
    "least": np.array([0.5], np.float32),
    "floor": np.array([0.5], np.float32),
}
"""Each of two boxes counts for each of two classes whose score is above a half."""


def test_the_number_of_boxes_found_is_no_shape_that_must_stay() -> None:
    source = parse(BOXES, "float[1,2,2] x", "int64[found,3] y", BOX_SCALARS)
    fewer = parse(BOXES, "float[1,2,2] x", "int64[found,3] y", BOX_SCALARS | {"w": np.zeros((2, 2), np.float32)})
    check_runs(build(imported(fewer)), source, None, {"x": np.ones((1, 2, 2), np.float32)})


def test_what_such_a_model_declares_fixed_must_stay() -> None:
    source = parse(BOXES, "float[1,2,2] x", "int64[found,3] y", BOX_SCALARS)
    nodes = f"{BOXES.replace('y =', 'z =')} y = Concat<axis=1>(z, z)"
    wider = parse(nodes, "float[1,2,2] x", "int64[found,k] y", BOX_SCALARS)
    with pytest.raises(ModelError, match=r"shapes \[\[\(\d+, 6\)\]\]"):
        check_runs(build(imported(wider)), source, None, {"x": np.ones((1, 2, 2), np.float32)})


def test_a_feed_that_the_source_refuses_is_not_asked_of_the_pruned_model() -> None:
    source = parse("y = Reshape(x, shape)", "float[n,4] x", "float[a,b] y", {"shape": np.array([2, 2])})
    assert check_runs(build(imported(source)), source, None, FEED)
