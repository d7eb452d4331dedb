"""Weights are thinned out soundly in whatever ONNX allows and onnxruntime runs, and zeros outlive quantizing."""

from __future__ import annotations

import numpy as np
import onnx
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from onnx import ModelProto

import amct_onnx
from amct_onnx.errors import NothingToCompressError
from amct_onnx.graph import constant_array
from amct_onnx.graph.op_table import resolve_constant
from amct_onnx.graph.parts import Node, Tensor
from amct_onnx.record import format_record, parse_record
from tests.legal.strategy import Case, channel_cases
from tests.legal.test_legal_models import NIGHTLY
from tests.legal.test_pruned_models import assert_same_shapes, results
from tests.models import Array, imported


@settings(
    max_examples=int(NIGHTLY or "60"),
    derandomize=NIGHTLY is None,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    database=None,
)
@given(channel_cases(), st.booleans())
def test_weights_of_a_legal_model(case: Case, has_data: bool) -> None:
    try:
        onnx.checker.check_model(case.model, full_check=True)
    except Exception:
        assume(False)
    assume(all(results(case.model, feed) is not None for feed in case.feeds))
    try:
        result = amct_onnx.sparsify(case.model, case.feeds if has_data else None, input_shapes=_shapes(case, has_data))
    except NothingToCompressError:
        return
    sparse = result.model.to_proto()
    onnx.checker.check_model(sparse, full_check=True)
    layers = [layer.name for layer in result.report.layers]
    assert all(refusal.reason for refusal in result.report.refusals)
    assert_thin(sparse, layers)
    assert_same_shapes(sparse, case)
    is_changed = any(layer.is_compensated for layer in result.report.layers)
    again = amct_onnx.restore_sparse(sparse if is_changed else case.model, parse_record(format_record(result.record)))
    assert again.model.to_proto().SerializeToString(deterministic=True) == sparse.SerializeToString(deterministic=True)
    try:
        quantized = amct_onnx.quantize(sparse, case.feeds, trial=False)
    except NothingToCompressError:
        return
    for form in quantized.models:
        assert_thin(quantized.model(form), layers)


def _shapes(case: Case, has_data: bool) -> dict[str, tuple[int, ...]] | None:
    return None if has_data else {"x": case.feeds[0]["x"].shape}


def assert_thin(model: ModelProto, layers: list[str]) -> None:
    """Of every four weights along the input channels, at the same place of one filter, two at most are not zero."""
    nodes = {str(node.name): node for node in imported(model).nodes()}
    for name in layers:
        weight = _weight(nodes[name].inputs[1]) if name in nodes else None
        if weight is None:
            continue
        filters = _filters(nodes[name], weight)
        for begin in range(0, filters.shape[1], 4):
            assert np.count_nonzero(filters[:, begin : begin + 4], axis=1).max(initial=0) <= 2, name


def _weight(tensor: Tensor) -> Array | None:
    """Values of a weight, or the integers that are dequantized to it."""
    constant = resolve_constant(tensor)
    if constant is None and tensor.inputs and tensor.inputs[0].op == "DequantizeLinear":
        constant = resolve_constant(tensor.inputs[0].inputs[0])
    return None if constant is None else np.asarray(constant_array(constant))


def _filters(node: Node, weight: Array) -> Array:
    """A weight with the input channels of one group on its second axis."""
    if node.op == "ConvTranspose":
        groups = int(node.attrs.get("group", 1))
        parts = weight.reshape(groups, weight.shape[0] // groups, *weight.shape[1:])
        return np.moveaxis(parts, 1, 2).reshape(-1, parts.shape[1], *parts.shape[3:])
    if node.op == "Conv" or node.attrs.get("transB", 0):
        return weight
    return np.swapaxes(weight, -1, -2).reshape(-1, weight.shape[-2])
