"""Measurements of amct_onnx and of its peers on trained models and labelled data."""
