"""Running models with onnxruntime; the only room that imports it."""

from amct_onnx.runtime.session import InputSpec, fetch, input_specs, open_session, tensor_outputs

__all__ = ["InputSpec", "fetch", "input_specs", "open_session", "tensor_outputs"]
