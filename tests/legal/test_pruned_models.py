"""Channels go soundly out of whatever ONNX allows and onnxruntime runs, or stay with a reason."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import onnx
from hypothesis import HealthCheck, assume, given, settings
from onnx import GraphProto, ModelProto, TensorProto, numpy_helper

import amct_onnx
from amct_onnx.errors import NothingToCompressError
from amct_onnx.record import PruneNode, Record, format_record, parse_record
from tests.legal.strategy import Case, channel_cases
from tests.legal.test_legal_models import NIGHTLY, unnamed
from tests.models import Array, imported, run

_TOLERANCE = {"float16": 2e-2}
_RECURRENT = ("LSTM", "GRU", "RNN")
_LAYERS = ("Conv", "ConvTranspose", "Gemm", "MatMul", *_RECURRENT)


def results(model: ModelProto, feed: dict[str, Array]) -> list[Array] | None:
    """None where the model does not run, or not to finite numbers."""
    try:
        found = run(unnamed(model), feed)
    except Exception:  # onnxruntime's errors share no class
        return None
    return found if all(np.isfinite(array).all() for array in found) else None


def is_repeatable(model: ModelProto, feed: dict[str, Array]) -> bool:
    """Whether runs give the same."""
    runs = [run(unnamed(model), feed) for _ in range(3)]
    return all(
        np.array_equal(first, other, equal_nan=first.dtype.kind == "f")
        for again in runs[1:]
        for first, other in zip(runs[0], again, strict=True)
    )


def other_sizes(case: Case) -> Iterator[dict[str, Array]]:
    """The first feed, and what the model takes at other sizes of its free axes."""
    x = case.feeds[0]["x"]
    yield {"x": x}
    dims = case.model.graph.input[0].type.tensor_type.shape.dim
    if not dims[0].HasField("dim_value"):
        yield from ({"x": x[:1]}, {"x": np.concatenate([x, x])})
    if len(dims) > 2 and not dims[-1].HasField("dim_value"):
        yield from ({"x": np.concatenate([x, x], axis=-1)}, {"x": x[..., :2]})


@settings(
    max_examples=int(NIGHTLY or "150"),
    derandomize=NIGHTLY is None,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    database=None,
)
@given(channel_cases())
def test_channels_of_a_legal_model(case: Case) -> None:
    try:
        onnx.checker.check_model(case.model, full_check=True)
    except Exception:
        assume(False)
    assume(results(case.model, case.feeds[0]) is not None)
    shapes = {"x": case.feeds[0]["x"].shape}
    try:
        result = amct_onnx.prune(case.model, ratio=case.ratio, input_shapes=shapes)
    except NothingToCompressError:
        return
    pruned = result.model.to_proto()
    onnx.checker.check_model(pruned, full_check=True)
    assert all(group.removed or group.reason for group in result.report.groups)
    assert_same_shapes(pruned, case)
    record = parse_record(format_record(result.record)).record
    again = amct_onnx.restore_pruned(case.model, record, input_shapes=shapes).model.to_proto()
    assert again.SerializeToString(deterministic=True) == pruned.SerializeToString(deterministic=True)
    if not any(group.approximate for group in result.report.groups if group.removed):
        assert_unread_channels_go_without_a_trace(case, record)


def assert_same_shapes(pruned: ModelProto, case: Case) -> None:
    for feed in other_sizes(case):
        want = results(case.model, feed)
        if want is not None:
            got = run(unnamed(pruned), feed)
            assert [(array.shape, array.dtype) for array in got] == [(array.shape, array.dtype) for array in want]


def assert_unread_channels_go_without_a_trace(case: Case, record: Record) -> None:
    """Where no layer has weights for the channels that go, nothing changes, whatever is in them."""
    unread = without_reads(case.model, record)
    if unread is None:
        return
    shapes = {"x": case.feeds[0]["x"].shape}
    restored = amct_onnx.restore_pruned(unread, record, structure_only=True, input_shapes=shapes)
    pruned = restored.model.to_proto()
    for feed in other_sizes(case):
        want = results(unread, feed)
        if want is None or not (is_repeatable(unread, feed) and is_repeatable(pruned, feed)):
            continue
        for array, wanted in zip(run(unnamed(pruned), feed), want, strict=True):
            largest = max(1.0, float(np.abs(wanted).max(initial=0)))
            near = _TOLERANCE.get(wanted.dtype.name, 2e-4) * largest
            np.testing.assert_allclose(array.astype(np.float64), wanted.astype(np.float64), atol=near)


def without_reads(model: ModelProto, record: Record) -> ModelProto | None:
    """The model without the weights that read what a record takes out; None where no constant holds them."""
    copy = ModelProto()
    copy.CopyFrom(model)
    stored = dict(_stored(copy.graph, {}))
    nodes = {str(node.name): node for node in imported(copy).nodes()}
    for entry in record.prune:
        reads = [*((node, 1) for node in entry.consumers), *((node, 2) for node in entry.producers)]
        for read, index in reads:
            node = nodes[read.name]
            if node.op not in _LAYERS or (index == 2 and node.op not in _RECURRENT):
                continue
            tensor = stored.get(node.inputs[index].name)
            if tensor is None:
                return None
            values = numpy_helper.to_array(tensor).copy()
            _clear(values, read, node.op, int(node.attrs.get("group", 1)), turned=bool(node.attrs.get("transB", 0)))
            tensor.CopyFrom(numpy_helper.from_array(values, tensor.name))
    return copy


def _clear(values: Array, read: PruneNode, op: str, groups: int, *, turned: bool) -> None:
    channels = list(read.prune_index or ())
    if op in _RECURRENT:
        values[:, :, channels] = 0
    elif op == "Conv" and (groups == 1 or values.shape[1] > 1):
        rows, width = values.shape[0] // groups, values.shape[1]
        for channel in channels:
            block = channel // width
            values[block * rows : (block + 1) * rows, channel % width] = 0
    elif op == "ConvTranspose" and (groups == 1 or groups < values.shape[0]):
        values[channels] = 0
    elif op in ("Gemm", "MatMul"):
        values[(slice(None), channels) if turned else channels] = 0


def _stored(graph: GraphProto, outer: dict[str, TensorProto]) -> dict[str, TensorProto]:
    """Constants by the names under which nodes read them."""
    found = outer
    found.update({tensor.name: tensor for tensor in graph.initializer})
    for node in graph.node:
        if node.op_type == "Constant":
            found[node.output[0]] = next(attribute.t for attribute in node.attribute if attribute.name == "value")
        elif node.op_type == "Identity" and node.input[0] in found:
            found[node.output[0]] = found[node.input[0]]
        for attribute in node.attribute:
            if attribute.HasField("g"):
                _stored(attribute.g, found)
    return found
