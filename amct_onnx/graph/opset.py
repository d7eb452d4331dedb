"""Raise the version of the default operator set, where an output form needs operators of a later one."""

from __future__ import annotations

from onnx import ModelProto, version_converter

from amct_onnx.errors import ModelError
from amct_onnx.graph.model import import_model
from amct_onnx.graph.naming import name_nodes
from amct_onnx.graph.shapes import without_large_weights


def raise_opset(proto: ModelProto, minimum: int) -> ModelProto:
    """`proto` itself when its default operator set is recent enough, else a converted copy.

    Operators that changed meaning on the way (Softmax, Squeeze, ReduceSum, ...) are really rewritten, by onnx's own
    converter; large weights do not pass through it. Nodes are named first, so that the converter's own new nodes
    shift no name.

    Raises:
        ModelError: the converter cannot bring the model there.
    """
    current = next((entry.version for entry in proto.opset_import if entry.domain in ("", "ai.onnx")), 0)
    if current == 0 or current >= minimum:
        return proto
    light = _named(without_large_weights(proto))
    try:
        converted = version_converter.convert_version(light, minimum)
    except Exception as error:
        # The converter's C++ exceptions reach Python as bare RuntimeError and kin.
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise ModelError(
            f"the model uses operator set {current}, this output form needs {minimum}, and converting fails: {reason}; "
            f"export the model again with opset {minimum} or later"
        ) from error
    originals = {initializer.name: initializer for initializer in proto.graph.initializer}
    for initializer in converted.graph.initializer:
        if initializer.name in originals:
            initializer.CopyFrom(originals[initializer.name])
    if not converted.metadata_props:
        converted.metadata_props.MergeFrom(proto.metadata_props)
    converted.ir_version = max(converted.ir_version, proto.ir_version)
    return converted


def _named(light: ModelProto) -> ModelProto:
    """`light` itself with every node named as :func:`name_nodes` would."""
    model = import_model(light)
    name_nodes(model)
    for graph in model.graphs():
        for node in graph.nodes:
            node.origin.name = node.name
    return light
