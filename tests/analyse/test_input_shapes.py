"""Input shapes on the command line."""

from __future__ import annotations

import re

import pytest

from amct_onnx.analyse.input_shapes import parse_input_shape
from amct_onnx.errors import UsageError


def test_input_shapes() -> None:
    assert parse_input_shape("x:1,3,224,224") == {"x": (1, 3, 224, 224)}
    assert list(parse_input_shape(" in:0 : 2, 3 ;y:1;").items()) == [("in:0 ", (2, 3)), ("y", (1,))]
    assert parse_input_shape("a:b:7;s:") == {"a:b": (7,), "s": ()}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "no input shape"),
        ("1,3", "'1,3' is not of the form name:1,3,224,224"),
        (":1,3", "is not of the form"),
        ("x:1,,2", "'' is no size"),
        (";", "no input shape"),
        ("x:1,-1", "'-1' is no size; give whole numbers"),
        ("x:N,3", "'N' is no size"),
        ("x:²", "'²' is no size"),
        ("x:" + "9" * 5000, "larger than any tensor"),
        ("x:1;x:2", "name input 'x' twice"),
    ],
)
def test_input_shapes_that_mean_nothing(text: str, words: str) -> None:
    with pytest.raises(UsageError, match=re.escape(words)):
        parse_input_shape(text)
