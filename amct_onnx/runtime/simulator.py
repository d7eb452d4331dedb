"""Run a deploy model exactly, on any CPU: the integer simulator."""

from __future__ import annotations

import os

import onnxruntime as ort
from onnx import ModelProto

from amct_onnx.errors import ModelError
from amct_onnx.graph import build, import_model, read_model
from amct_onnx.passes.absorb_casts import SpellCasts
from amct_onnx.passes.lower_integer import LowerToIntegers
from amct_onnx.passes.pack_int4 import PACKED_LAYERS, UnpackInt4Weights
from amct_onnx.passes.recurrent_forms import LowerRecurrent
from amct_onnx.runtime.session import open_session

MINIMUM_OPSET = 11


def open_simulator(deploy: str | os.PathLike[str] | ModelProto) -> ort.InferenceSession:
    """A session that computes what a deploy model computes on the device, in int32.

    Against the fake-quant model, layer by layer on the same input: equal to the bit where
    ``sum(|w|) * 255 + |b| < 2^24``, within 2^-22 relative otherwise, because the fake-quant model accumulates in
    float32.

    Args:
        deploy: path or ModelProto of a model in the ascend form.

    Raises:
        ModelError: the model cannot be read or holds what is not simulated.
    """
    return open_session(integer_model(deploy), optimize=False)


def integer_model(deploy: str | os.PathLike[str] | ModelProto) -> ModelProto:
    """The deploy model in standard integer operators."""
    proto, base_dir = read_model(deploy)
    model = import_model(proto, base_dir)
    if 0 < model.opset < MINIMUM_OPSET:
        raise ModelError(
            f"the deploy model uses operator set {model.opset}; simulating needs {MINIMUM_OPSET} for Round; "
            f"export the source model with opset {MINIMUM_OPSET} or later"
        )
    packed = {entry.key: entry.value for entry in proto.metadata_props}.get(PACKED_LAYERS, "")
    UnpackInt4Weights(packed).run(model)
    SpellCasts().run(model)
    LowerRecurrent().run(model)
    LowerToIntegers().run(model)
    return build(model).to_proto()
