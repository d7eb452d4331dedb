"""Steps along which channels take odd ways: residuals, gates, shuffles, heads, parts, hidden units, computed sizes."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnxruntime
from onnx import helper

from tests.legal import steps
from tests.legal.writer import NODE_NAMES, TYPES, Value, Writer

_GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}


def widen(writer: Writer, data: Value) -> Value:
    """A layer with some channels."""
    out = writer.pick([4, 6, 8, 12])
    if data.rank == 2:
        return writer.add("MatMul", [data, writer.weight(data.shape[1], out)])
    if data.rank == 3 and writer.flag():
        return writer.add("MatMul", [data, writer.weight(data.shape[2], out)])
    return writer.add("Conv", [data, writer.weight(out, data.shape[1], *_ones(data))])


def residual(writer: Writer, data: Value) -> Value:
    channels = data.shape[1]
    if data.rank == 2:
        made = writer.add("MatMul", [data, writer.weight(channels, channels)])
    else:
        made = writer.add("Conv", [data, writer.weight(channels, channels, *_ones(data))])
    return writer.add("Add", [made, data][:: writer.pick([1, -1])])


def dense(writer: Writer, data: Value) -> Value:
    """A layer beside what it reads."""
    if data.rank == 2:
        made = writer.add("MatMul", [data, writer.weight(data.shape[1], 4)])
    else:
        made = writer.add("Conv", [data, writer.weight(4, data.shape[1], *_ones(data))])
    return writer.add("Concat", writer.pick([[data, made], [made, data, made]]), axis=1)


def excite(writer: Writer, data: Value) -> Value:
    """Every channel times a gate that all of them make."""
    channels, inner = data.shape[1], max(1, data.shape[1] // 2)
    if data.rank == 2:
        return residual(writer, data)
    mean = writer.add("Flatten", [writer.add("GlobalAveragePool", [data])])
    down = writer.add("Relu", [writer.add("MatMul", [mean, writer.weight(channels, inner)])])
    gate = writer.add("Sigmoid", [writer.add("MatMul", [down, writer.weight(inner, channels)])])
    shape = [writer.pick([0, -1]), channels, *_ones(data)]
    return writer.add("Mul", [data, writer.add("Reshape", [gate, _ints(writer, *shape)])])


def shuffle(writer: Writer, data: Value) -> Value:
    groups = [size for size in (2, 3, 4) if data.shape[1] % size == 0]
    if data.rank == 2 or not groups:
        return widen(writer, data)
    group, behind = writer.pick(groups), list(data.shape[2:])
    grid = writer.add("Reshape", [data, _ints(writer, 0, group, data.shape[1] // group, *behind)])
    turned = writer.add("Transpose", [grid], perm=[0, 2, 1, *range(3, data.rank + 1)])
    return writer.add("Reshape", [turned, _ints(writer, 0, writer.pick([-1, data.shape[1]]), *behind)])


def attend(writer: Writer, data: Value) -> Value:
    """Attention with one or two heads over the second axis."""
    if data.rank != 3:
        return widen(writer, data)
    width, heads = writer.pick([4, 8]), writer.pick([1, 2])

    def turned(*perm: int) -> Value:
        made = writer.add("MatMul", [data, writer.weight(data.shape[2], width)])
        if writer.flag():
            made = writer.add("Add", [made, writer.weight(width)])
        parts = writer.add("Reshape", [made, _ints(writer, 0, 0, heads, writer.pick([-1, width // heads]))])
        return writer.add("Transpose", [parts], perm=list(perm))

    scores = writer.add("Softmax", [writer.add("MatMul", [turned(0, 2, 1, 3), turned(0, 2, 3, 1)])], axis=3)
    mixed = writer.add("Transpose", [writer.add("MatMul", [scores, turned(0, 2, 1, 3)])], perm=[0, 2, 1, 3])
    return writer.add("Reshape", [mixed, _ints(writer, 0, 0, writer.pick([-1, width]))])


# onnxruntime 1.21 reads memory that nobody wrote, or that is not its own, in recurrent layers of two directions:
# results differ from run to run, and now and then the process ends.
_DIRECTIONS = [1] if onnxruntime.__version__.startswith("1.21.") else [1, 2]


def recur(writer: Writer, data: Value) -> Value:
    """A recurrent layer of one or two directions, of which the states at all steps or the last ones are read."""
    if data.rank != 3:
        return widen(writer, data)
    op, hidden, directions = writer.pick(sorted(_GATES)), writer.pick([3, 4, 6]), writer.pick(_DIRECTIONS)
    rows = _GATES[op] * hidden
    inputs = [data.name, writer.weight(directions, rows, data.shape[2]), writer.weight(directions, rows, hidden)]
    inputs += [writer.weight(directions, 2 * rows)] if writer.flag() else []
    way = "bidirectional" if directions == 2 else writer.pick(["forward", "reverse"])
    sequence, samples = data.shape[:2]
    if writer.flag():
        states = _node(writer, op, inputs, (sequence, directions, samples, hidden), hidden_size=hidden, direction=way)
        beside = writer.add("Transpose", [states], perm=[0, 2, 1, 3])
        return writer.add("Reshape", [beside, _ints(writer, 0, 0, writer.pick([-1, directions * hidden]))])
    last = _node(writer, op, inputs, (directions, samples, hidden), place=1, hidden_size=hidden, direction=way)
    beside = writer.add("Transpose", [last], perm=[1, 0, 2])
    return writer.add("Reshape", [beside, _ints(writer, 0, writer.pick([-1, directions * hidden]))])


def deal(writer: Writer, data: Value) -> Value:
    """Equal parts, joined again in another order, added up, or one of them gated by another."""
    counts = [count for count in (2, 3, 4) if data.shape[1] % count == 0]
    if not counts:
        return widen(writer, data)
    count = writer.pick(counts)
    axis = writer.pick([1, 1 - data.rank])
    sized = {"num_outputs": count} if writer.opset >= 18 else {}
    writer.add("Split", [data], outputs=count, axis=axis, **sized)
    shape = (data.shape[0], data.shape[1] // count, *data.shape[2:])
    parts = [Value(name, shape) for name in writer.nodes[-1].output]
    writer.values.extend(parts[1:])
    how = writer.pick(["Concat", "Add", "gate"])
    if how == "Concat":
        return writer.add("Concat", parts[::-1], axis=axis)
    second = writer.add("Sigmoid", [parts[1]]) if how == "gate" else parts[1]
    return writer.add("Mul" if how == "gate" else "Add", [parts[0], second])


def cut(writer: Writer, data: Value) -> Value:
    if writer.opset < 10 or data.shape[1] < 3:
        return widen(writer, data)
    begin, end = writer.pick([0, 1, -2]), writer.pick([data.shape[1], 2**40])
    bounds = [_ints(writer, value) for value in (begin, end, writer.pick([1, 1 - data.rank]))]
    return writer.add("Slice", [data, *bounds])


def take(writer: Writer, data: Value) -> Value:
    """Channels by number, some twice, counted from either end."""
    size = data.shape[1]
    numbers = [writer.pick(range(-size, size)) for _ in range(writer.pick([2, size, size + 2]))]
    return writer.add("Gather", [data, _ints(writer, *numbers)], axis=writer.pick([1, 1 - data.rank]))


def depthwise(writer: Writer, data: Value) -> Value:
    if data.rank == 2:
        return widen(writer, data)
    channels, each = data.shape[1], writer.pick([1, 2])
    if writer.flag():
        return writer.add("Conv", [data, writer.weight(channels * each, 1, *_ones(data))], group=channels)
    return writer.add("ConvTranspose", [data, writer.weight(channels, each, *_ones(data))], group=channels)


def view_and_back(writer: Writer, data: Value) -> Value:
    """Other axes and the old ones again, by a shape that is computed."""
    if data.rank == 2:
        return widen(writer, data)
    shape = _node(writer, "Shape", [data.name], (data.rank,))
    flat = writer.add("Reshape", [data, _ints(writer, 0, writer.pick([0, data.shape[1]]), -1)])
    return _node(writer, "Reshape", [steps.activation(writer, flat).name, shape.name], data.shape)


def by_their_number(writer: Writer, data: Value) -> Value:
    """Divided by what is computed from the lengths of axes."""
    if writer.flag():
        number = _node(writer, "Size", [data.name], ())
    else:
        shape = _node(writer, "Shape", [data.name], (data.rank,))
        place = writer.constant(np.array(writer.pick(range(data.rank)), np.int64))
        number = _node(writer, "Gather", [shape.name, place], (), axis=0)
    as_float = _node(writer, "Cast", [number.name], (), to=TYPES[writer.dtype.name])
    return _node(writer, "Div", [data.name, as_float.name], data.shape)


def _node(writer: Writer, op: str, inputs: list[str], shape: tuple[int, ...], *, place: int = 0, **given: Any) -> Value:
    """A node whose result at one place has this shape; numbers and vectors are no values for other steps."""
    made = Value(writer.tensor_name(), shape)
    name = NODE_NAMES[writer.names[0]](writer.counter)
    writer.nodes.append(helper.make_node(op, inputs, [""] * place + [made.name], name=name, **given))
    if made.rank > 1:
        writer.values.append(made)
    return made


def _ints(writer: Writer, *values: int) -> str:
    return writer.constant(np.array(values, np.int64))


def _ones(data: Value) -> list[int]:
    return [1] * (data.rank - 2)


ALL = (
    *(widen, widen, residual, dense, excite, shuffle, attend, recur, deal, cut, take, depthwise),
    *(view_and_back, by_their_number),
)
