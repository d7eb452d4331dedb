"""Steps that an added number is a multiple of.

``quantize(x + a, s, z) = quantize(x, s, z + a / s)`` where ``a / s`` is an integer: then an addition of one number
between two quantizers needs no kernel and no second rounding (:mod:`amct_onnx.passes.join_pairs`).
"""

from __future__ import annotations

import math
from collections.abc import Container
from dataclasses import dataclass

import numpy as np

from amct_onnx.analyse.algorithms.uniform import squared_error
from amct_onnx.analyse.statistics import Distribution
from amct_onnx.graph import Tensor
from amct_onnx.graph.op_table import is_standard, resolve_constant, scalar_constant

_WORST = 1.26
"""Squared error may grow by 1 dB, since other output forms use the same scale and gain nothing."""


@dataclass(frozen=True)
class Shift:
    """``tensor = before + number``, and nothing else reads `before`."""

    before: Tensor
    number: float


def find_shift(tensor: Tensor, paired: Container[str]) -> Shift | None:
    """The addition of one number that makes `tensor`, where its other operand is among the `paired` names."""
    add = tensor.inputs[0] if tensor.inputs else None
    if add is None or add.op != "Add" or not is_standard(add):
        return None
    for before, other in (tuple(add.inputs), tuple(add.inputs)[::-1]):
        number = scalar_constant(other)
        is_alone = resolve_constant(before) is None and len(before.outputs) == 1 and before.name in paired
        if number and math.isfinite(number) and is_alone:
            return Shift(before, number)
    return None


def in_whole_steps(
    scale: float, offset: int, number: float, seen: Distribution, before: Distribution, quant_before: tuple[float, int]
) -> tuple[float, int]:
    """The 8-bit quantizer closest to the given one that has `number` as a multiple of its step, where that pays.

    Args:
        scale, offset: the quantizer of the sum.
        number: what is added.
        seen: values of the sum.
        before: values of the other operand.
        quant_before: scale and offset of that operand's own quantizer, whose rounding is saved.
    """
    exact = squared_error(seen, scale, offset, bits=8)
    rounding = squared_error(before, *quant_before, bits=8)
    low = (-128 - offset) * scale
    steps = abs(number) / scale
    errors: dict[tuple[float, int], float] = {}
    for count in {max(1, math.floor(steps)), max(1, math.ceil(steps))}:
        step = float(np.float32(abs(number) / count))
        aligned = max(-128, min(127, round(-128 - low / step)))
        if -128 <= aligned + math.copysign(count, number) <= 127:
            errors[step, aligned] = squared_error(seen, step, aligned, bits=8)
    best = min(errors, key=lambda key: errors[key], default=None)
    if best is None or errors[best] > min(_WORST * exact, exact + rounding):
        return scale, offset
    return best
