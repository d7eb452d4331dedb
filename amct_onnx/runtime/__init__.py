"""Running models with onnxruntime; the only room that imports it."""

from amct_onnx.runtime.lending import Part
from amct_onnx.runtime.session import (
    InferenceSession,
    InputSpec,
    array_outputs,
    fetch,
    input_specs,
    open_session,
    tensor_outputs,
)

__all__ = [
    "InferenceSession",
    "InputSpec",
    "Part",
    "array_outputs",
    "fetch",
    "input_specs",
    "open_session",
    "tensor_outputs",
]
