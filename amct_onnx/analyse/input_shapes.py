"""Shapes of inputs as a command line spells them, and whether a model can have them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from onnx import ModelProto

from amct_onnx.errors import UsageError

_MOST_DIGITS = 18
"""Sizes are 64-bit numbers."""


def parse_input_shape(text: str) -> dict[str, tuple[int, ...]]:
    """``"name:1,3,224,224;other:1,16;scalar:"`` as shapes by input name; a shape stands behind the last colon.

    Raises:
        UsageError: an entry has no name, a size is no number of 0 or more, or a name comes twice.
    """
    shapes: dict[str, tuple[int, ...]] = {}
    for part in filter(str.strip, text.split(";")):
        name, colon, sizes = part.strip().rpartition(":")
        if not colon or not name:
            raise UsageError(f"input shape '{part.strip()}' is not of the form name:1,3,224,224; write it so")
        if name in shapes:
            raise UsageError(f"the input shapes name input '{name}' twice; delete one")
        shapes[name] = tuple(_size(size.strip(), name) for size in sizes.split(",")) if sizes.strip() else ()
    if not shapes:
        raise UsageError("no input shape was given; write name:1,3,224,224, with ; between inputs")
    return shapes


def input_shape_text(shapes: Mapping[str, Sequence[int]]) -> str:
    """Inverse of :func:`parse_input_shape`."""
    return ";".join(f"{name}:{','.join(map(str, sizes))}" for name, sizes in shapes.items())


def check_input_shapes(proto: ModelProto, fed: Mapping[str, Sequence[int]]) -> None:
    """Raise :class:`UsageError` for a shape that no input of the model can have."""
    inputs = {info.name: info.type.tensor_type for info in proto.graph.input}
    for name, sizes in fed.items():
        if name not in inputs:
            raise UsageError(f"input shape: '{name}' is no input of the model; its inputs are {', '.join(inputs)}")
        if 0 in sizes:
            raise UsageError(f"input shape: {list(sizes)} of input '{name}' holds nothing; give sizes above 0")
        if not inputs[name].HasField("shape"):
            continue
        dims = inputs[name].shape.dim
        fixed = [dim.dim_value if dim.HasField("dim_value") and dim.dim_value >= 0 else None for dim in dims]
        if len(fixed) != len(sizes) or any(want not in (None, have) for want, have in zip(fixed, sizes, strict=True)):
            shown = ", ".join("?" if size is None else str(size) for size in fixed)
            raise UsageError(f"input shape: {list(sizes)} does not fit input '{name}' of shape [{shown}]")


def _size(text: str, name: str) -> int:
    # Not isdigit, which takes digits that int refuses.
    if not (text.isascii() and text.isdecimal()):
        raise UsageError(f"input shape of '{name}': '{text}' is no size; give whole numbers, for free sizes too")
    if len(text) > _MOST_DIGITS:
        raise UsageError(f"input shape of '{name}': {text[:_MOST_DIGITS]}... is larger than any tensor; correct it")
    return int(text)
