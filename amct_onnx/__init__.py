"""amct_onnx: quantize and prune ONNX models after export."""

__version__ = "0.1.0"
