"""Shapes of inputs as a command line spells them."""

from __future__ import annotations

from amct_onnx.errors import UsageError


def parse_input_shape(text: str) -> dict[str, tuple[int, ...]]:
    """``"x:1,3,224,224;y:1,8"`` as input name -> shape.

    Raises:
        UsageError: the text is spelled otherwise, or a size is negative.
    """
    shapes: dict[str, tuple[int, ...]] = {}
    for part in filter(None, (part.strip() for part in text.split(";"))):
        # A name may hold a colon itself.
        name, _, sizes = part.rpartition(":")
        numbers = [size.strip() for size in sizes.split(",")] if sizes.strip() else []
        if not name or name in shapes or not all(number.isascii() and number.isdigit() for number in numbers):
            raise UsageError(f"--input-shape: '{part}' is no name and sizes; write it like \"x:1,3,224,224;y:1,8\"")
        shapes[name] = tuple(map(int, numbers))
    if not shapes:
        raise UsageError('--input-shape is empty; write it like "x:1,3,224,224;y:1,8"')
    return shapes
