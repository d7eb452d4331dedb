"""Flags as messages name them."""

from __future__ import annotations

import argparse
from collections.abc import Iterable

from amct_onnx.errors import UsageError

_OTHERS = {"formats": "--format", "input_shapes": "--input-shape"}
"""Arguments of functions whose flags bear other names."""


def flag_of(argument: str) -> str:
    """The flag that stands for an argument of the functions behind the commands."""
    return _OTHERS.get(argument, f"--{argument.replace('_', '-')}")


def refuse_flags(arguments: argparse.Namespace, names: Iterable[str], why: str) -> None:
    """Raise :class:`UsageError` for the first of some flags that was given, by its name among the arguments."""
    given = next((name for name in names if getattr(arguments, name) is not None), None)
    if given is not None:
        raise UsageError(f"{flag_of(given)} {why}; leave it out")
