"""Shapes that inference cannot tell are seen in a run, whatever the tensor holds."""

from __future__ import annotations

import numpy as np
import pytest

from amct_onnx.analyse.shapes import find_shapes
from amct_onnx.errors import ModelError
from amct_onnx.runtime.shapes import run_shapes
from tests.models import parse

SOURCE = parse(
    "found = NonZero(x) turned = Transpose(found) y = Cast<to = 1>(turned) z = Relu(y)", "float[2,3] x", "float[n,m] z"
)
FEED = {"x": np.array([[0, 1, 0], [2, 0, 3]], np.float32)}


def test_of_numbers_too() -> None:
    assert find_shapes(SOURCE, None, FEED).shapes == {
        "x": (2, 3),
        "found": (2, 3),
        "turned": (3, 2),
        "y": (3, 2),
        "z": (3, 2),
    }


def test_a_sequence_has_none_and_what_is_taken_from_it_has() -> None:
    source = parse(
        "parts = SplitToSequence<axis = 0>(x, two) at = Constant<value_int = 1>() y = SequenceAt(parts, at)",
        "float[4,3] x",
        "float[n,m] y",
        {"two": np.array(2)},
    )
    found = find_shapes(source, None, {"x": np.ones((4, 3), np.float32)})
    assert "parts" not in found.shapes
    assert (found.shapes["y"], found.missing) == ((2, 3), ())


def test_a_sequence_that_is_asked_about_is_refused() -> None:
    source = parse("parts = SequenceConstruct(x, x) y = SequenceLength(parts)", "float[4,3] x", "int64 y")
    with pytest.raises(ModelError, match="Shape"):
        run_shapes(source, None, {"x": np.ones((4, 3), np.float32)}, ["parts"])


def test_what_may_be_a_sequence_is_not_in_the_way() -> None:
    # Nobody knows the types behind an operator of another domain.
    source = parse(
        "a = com.microsoft.Gelu(x) parts = SequenceConstruct(a, a) b = SequenceAt(parts, at) y = Relu(b)",
        "float[4,3] x",
        "float[n,m] y",
        {"at": np.array(1)},
        domains='"com.microsoft": 1',
    )
    found = find_shapes(source, None, {"x": np.ones((4, 3), np.float32)}).shapes
    assert (found["a"], found["b"], found["y"]) == ((4, 3),) * 3
    assert "parts" not in found
