"""Rules on the entries of a tensors file, and on zero points."""

from __future__ import annotations

from collections.abc import Iterator

from amct_onnx.record.complaints import Complaint
from amct_onnx.record.findings import Severity
from amct_onnx.record.layers import LayerRecord


def tensor_complaints(entry: LayerRecord) -> Iterator[Complaint]:
    """Yield what is wrong with the entry of one tensor; an empty one leaves it in float."""
    if entry.is_empty:
        return
    for field in ("scale_d", "offset_d"):
        if getattr(entry, field) is None:
            yield Complaint(None, f"{field} is missing; a tensor gives scale_d and offset_d, or no field at all")
    if entry.activation_type != "INT8":
        yield Complaint(
            "act_type", f"the type is {entry.activation_type}; tensors of the QDQ form take INT8: correct it"
        )
    for field in ("scale_w", "offset_w"):
        if getattr(entry, field):
            yield Complaint(field, f"a tensor has no {field}; it is ignored and may be deleted", Severity.WARNING)


def zero_point_complaints(entry: LayerRecord) -> Iterator[Complaint]:
    """Yield a complaint about a zero point, for a target that takes none."""
    for name, offset in (("offset_d", entry.offset_d), ("offset_h", entry.offset_h)):
        if offset:
            yield Complaint(
                name,
                f"{name} is {offset}; TensorRT takes no zero points: quantize again for that target, "
                "or with symmetric activations",
            )
