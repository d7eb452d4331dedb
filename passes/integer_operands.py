"""The quantized data input of a simulated layer, cut into parts that a CPU runtime multiplies exactly."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from onnx import TensorProto

from amct_onnx.graph.edit import Editor
from amct_onnx.graph.model import Model
from amct_onnx.graph.parts import Node, Tensor
from amct_onnx.graph.weights import Array

_DIGIT = 16
"""A float pass multiplies int8 weights by digits below this, so that its sums stay exact in float32."""
_BYTE = 256


@dataclass(frozen=True)
class Part:
    """``factor * (tensor - zero_point)`` is one part of the quantized value less its offset.

    Attributes:
        tensor: uint8 for integer operators; float32 with zero point 0 for float ones.
        factor: what one unit of it is worth.
        zero_point: what stands for zero, also in padding.
    """

    tensor: Tensor
    factor: int
    zero_point: int


class QuantizedInputs:
    """Makes the parts of every AscendQuant, once for all layers that read it."""

    def __init__(self, model: Model, editor: Editor) -> None:
        self._model = model
        self._editor = editor
        self._unsigned_of: dict[int, Tensor] = {}
        self._bytes: dict[int, list[Part]] = {}
        self._centred: dict[int, Tensor] = {}
        self._digits: dict[int, list[Part]] = {}

    def as_bytes(self, quant: Node) -> list[Part]:
        """uint8 parts: one for int8, the high and the low byte for int16."""
        if id(quant) not in self._bytes:
            unsigned, zero = self._unsigned(quant), _zero_point(quant)
            pieces = [(unsigned, 1, zero)]
            if _bits(quant) == 16:
                high, low = self._split(quant, unsigned, _BYTE, "byte")
                pieces = [(high, _BYTE, zero // _BYTE), (low, 1, zero % _BYTE)]
            self._bytes[id(quant)] = [
                Part(
                    self._step(quant, "Cast", f"byte_{factor}", [piece], {"to": int(TensorProto.UINT8)}), factor, point
                )
                for piece, factor, point in pieces
            ]
        return self._bytes[id(quant)]

    def as_digits(self, quant: Node) -> list[Part]:
        """Integer-valued float parts, all but the highest in [0, 15]."""
        if id(quant) not in self._digits:
            rest, factor, parts = self.centred(quant), 1, []
            for index in range(1 if _bits(quant) == 8 else 4):
                rest, digit = self._split(quant, rest, _DIGIT, f"digit_{index}")
                parts.append(Part(digit, factor, 0))
                factor *= _DIGIT
            self._digits[id(quant)] = [*parts, Part(rest, factor, 0)]
        return self._digits[id(quant)]

    def centred(self, quant: Node) -> Tensor:
        """The quantized value less its offset, as integer-valued float."""
        if id(quant) not in self._centred:
            zero = self._constant(quant, "zero_float", np.array(_zero_point(quant), np.float32))
            self._centred[id(quant)] = self._step(quant, "Sub", "centre", [self._unsigned(quant), zero])
        return self._centred[id(quant)]

    def _unsigned(self, quant: Node) -> Tensor:
        """``clip(round(x * scale) + zero_point, 0, 2^bits - 1)`` as float."""
        if id(quant) not in self._unsigned_of:
            values = {
                "scale": quant.attrs["scale"],
                "zero": _zero_point(quant),
                "low": 0,
                "high": 2 ** _bits(quant) - 1,
            }
            constants = {
                part: self._constant(quant, part, np.array(value, np.float32)) for part, value in values.items()
            }
            scaled = self._step(quant, "Mul", "mul", [quant.inputs[0], constants["scale"]])
            rounded = self._step(quant, "Round", "round", [scaled])
            shifted = self._step(quant, "Add", "add", [rounded, constants["zero"]])
            bounds = [constants["low"], constants["high"]]
            self._unsigned_of[id(quant)] = self._step(quant, "Clip", "clip", [shifted, *bounds])
        return self._unsigned_of[id(quant)]

    def _split(self, quant: Node, tensor: Tensor, base: int, name: str) -> tuple[Tensor, Tensor]:
        """``floor(t / base)`` and what remains; exact, because `base` is a power of two."""
        inverse = self._constant(quant, f"{name}.inverse", np.array(1 / base, np.float32))
        factor = self._constant(quant, f"{name}.base", np.array(base, np.float32))
        quotient = self._step(quant, "Mul", f"{name}.quotient", [tensor, inverse])
        high = self._step(quant, "Floor", f"{name}.floor", [quotient])
        whole = self._step(quant, "Mul", f"{name}.whole", [high, factor])
        return high, self._step(quant, "Sub", f"{name}.rest", [tensor, whole])

    def _constant(self, quant: Node, part: str, values: Array) -> Tensor:
        return self._model.add_constant(f"{quant.name}.simulated.{part}", values)

    def _step(
        self, quant: Node, op: str, part: str, inputs: Sequence[Tensor], attrs: dict[str, object] | None = None
    ) -> Tensor:
        name = f"{quant.name}.simulated.{part}"
        output = self._model.new_tensor(f"{name}.output0")
        self._editor.insert_before(quant, [Node(op, name, attrs or {}, list(inputs), [output])])
        return output


def _bits(quant: Node) -> int:
    return int(str(quant.attrs.get("dst_type", "INT8")).removeprefix("INT"))


def _zero_point(quant: Node) -> int:
    half: int = 1 << (_bits(quant) - 1)
    return int(quant.attrs["offset"]) + half
