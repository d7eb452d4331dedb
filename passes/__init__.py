"""Framework-neutral graph passes over an onnx-graphsurgeon graph."""
