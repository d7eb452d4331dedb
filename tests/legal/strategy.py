"""Random models that ONNX allows, and data for them."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import onnx
import onnxruntime
from hypothesis import assume
from hypothesis import strategies as st
from onnx import ModelProto, TensorProto, ValueInfoProto, helper

from tests.legal import channel_steps, steps
from tests.legal.writer import NODE_NAMES, TENSOR_NAMES, Value, Writer
from tests.models import Array

SHAPES = ((2, 4, 6, 5), (1, 2, 5, 5), (3, 4, 7), (2, 3, 4), (3, 6), (1, 2, 3, 4, 4))
CHANNEL_SHAPES = ((2, 4, 6, 5), (1, 2, 5, 5), (3, 4, 7), (3, 6), (2, 5, 8))
OLDEST = 7


class Case:
    """A model and two feeds, and a share of its channels; printed as text when a test fails."""

    def __init__(self, model: ModelProto, feeds: list[dict[str, Array]], ratio: float = 0.5) -> None:
        self.model = model
        self.feeds = feeds
        self.ratio = ratio

    def __repr__(self) -> str:
        return onnx.printer.to_text(self.model)


@cache
def newest_opset() -> int:
    """The newest operator set that the installed onnxruntime quantizes in; newer ones it takes in part."""
    for opset in range(onnx.defs.onnx_opset_version(), OLDEST, -1):
        info = helper.make_tensor_value_info("x", TensorProto.FLOAT, [1])
        scale = helper.make_tensor("s", TensorProto.FLOAT, [], [0.5])
        node = helper.make_node("QuantizeLinear", ["x", "s"], ["y"])
        result = helper.make_tensor_value_info("y", TensorProto.UINT8, [1])
        graph = helper.make_graph([node], "g", [info], [result], [scale])
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 4
        try:
            onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
        except Exception:  # its errors share no class
            continue
        return opset
    return OLDEST


@st.composite
def channel_cases(draw: Any) -> Case:
    """A model of a few steps between two layers, and how much of them goes."""
    writer = _writer(draw)
    data = Value("x", draw(st.sampled_from(CHANNEL_SHAPES)))
    writer.values.append(data)
    latest = channel_steps.widen(writer, data)
    for _ in range(draw(st.integers(1, 4))):
        possible = channel_steps.ALL if draw(st.integers(0, 2)) else _possible(writer, latest)
        latest = draw(st.sampled_from(possible))(writer, latest)
        assume(2 <= latest.rank <= 4)
    model = _model(writer, data, channel_steps.widen(writer, latest))
    feeds = [{"x": writer.rng.normal(size=data.shape).astype(writer.dtype)} for _ in range(2)]
    return Case(model, feeds, draw(st.sampled_from([0.3, 0.5, 0.9])))


@st.composite
def cases(draw: Any) -> Case:
    """A model of a few steps, written in any legal way."""
    writer = _writer(draw)
    data = Value("x", draw(st.sampled_from(SHAPES)))
    writer.values.append(data)
    latest = data
    count = draw(st.integers(1, 6))
    layer = draw(st.integers(0, count - 1))
    for step in range(count):
        possible = _layers(latest) if step == layer else _possible(writer, latest)
        latest = draw(st.sampled_from(possible))(writer, latest)
    model = _model(writer, data, latest)
    feeds = [{"x": writer.rng.normal(size=data.shape).astype(writer.dtype)} for _ in range(2)]
    return Case(model, feeds)


def _writer(draw: Any) -> Writer:
    opset = draw(st.sampled_from(range(OLDEST, newest_opset() + 1)))
    kind = draw(st.sampled_from(["float32"] * 6 + ["float16", "float64"]))
    names = draw(st.sampled_from(sorted(NODE_NAMES))), draw(st.sampled_from(sorted(TENSOR_NAMES)))
    storage = draw(st.sampled_from(["initializer", "node", "mixed"]))
    rng = np.random.default_rng(draw(st.integers(0, 2**16)))
    return Writer(draw, opset, np.dtype(kind), names, storage, rng)


def _layers(data: Value) -> list[Any]:
    if data.rank == 2:
        return [steps.gemm, steps.gemm, steps.matmul]
    return [steps.conv, steps.conv, steps.transposed, steps.average_pool, steps.matmul]


def _possible(writer: Writer, data: Value) -> list[Any]:
    possible = [*steps.ANY, *(steps.SPATIAL if data.rank > 2 else ())]
    possible += [steps.gemm, steps.gemm] if data.rank == 2 else [steps.flatten]
    return [*possible, *(steps.CONTROL if writer.opset >= 11 else ())]


def _model(writer: Writer, data: Value, latest: Value) -> ModelProto:
    further = [value for value in writer.values if value.name not in (latest.name, data.name)]
    outputs = [latest, *(value for value in further if writer.pick([False, False, False, True]))]
    if writer.pick([False] * 7 + [True]):
        outputs.append(data)
    kind = writer.type_of(data.name)
    inputs = [_declared(writer, data.name, kind, data.shape)]
    is_old = writer.opset < 9 and writer.flag()
    if is_old or writer.pick([False, False, True]):
        inputs += [helper.make_tensor_value_info(t.name, t.data_type, t.dims) for t in writer.initializers]
    infos = [_declared(writer, value.name, kind, value.shape) for value in outputs]
    model = helper.make_model(
        writer.graph(inputs, infos),
        opset_imports=[helper.make_opsetid("", writer.opset)],
        ir_version=3 if is_old else min(10, onnx.IR_VERSION),
    )
    return onnx.shape_inference.infer_shapes(model) if writer.flag() else model


def _declared(writer: Writer, name: str, kind: int, shape: tuple[int, ...]) -> ValueInfoProto:
    """With all sizes, with a free batch, or with free sizes."""
    way = writer.pick(["fixed", "batch", "free"])
    sizes: list[Any] = list(shape)
    if way == "batch":
        sizes[0] = "N"
    elif way == "free":
        sizes = [None, sizes[1], *[f"d{axis}" for axis in range(2, len(sizes))]]
    return helper.make_tensor_value_info(name, kind, sizes)
