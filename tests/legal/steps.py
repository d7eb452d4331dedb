"""The steps that random models are made of; each takes the latest tensor and makes one or more of it."""

from __future__ import annotations

import numpy as np
from onnx import AttributeProto, TensorProto, helper

from tests.legal.writer import Value, Writer


def conv(writer: Writer, data: Value) -> Value:
    channels, sizes = data.shape[1], data.shape[2:]
    group = writer.pick([1, 1, *(size for size in (2, channels) if channels % size == 0)])
    out = group * writer.pick([1, 2, 3])
    kernel = [writer.pick([1, min(2, size), min(3, size)]) for size in sizes]
    attributes = {"group": group, **_window(writer, sizes, kernel)}
    if writer.flag():
        attributes["kernel_shape"] = kernel
    weight = writer.weight(out, channels // group, *kernel)
    result = writer.add("Conv", [data, weight, *_bias(writer, out)], **attributes)
    return _bias_behind(writer, result)


def transposed(writer: Writer, data: Value) -> Value:
    channels, sizes = data.shape[1], data.shape[2:]
    group = writer.pick([1, *(size for size in (2, channels) if channels % size == 0)])
    each = writer.pick([1, 2])
    kernel = [writer.pick([1, 2, 3]) for _ in sizes]
    strides = [writer.pick([1, 2]) for _ in sizes]
    attributes = {"group": group, "strides": strides, "kernel_shape": kernel}
    if writer.flag():
        attributes["output_padding"] = [writer.pick([0, stride - 1]) for stride in strides]
    if writer.flag():
        attributes["pads"] = [writer.pick([0, min(1, (size - 1) // 2)]) for size in kernel * 2]
    weight = writer.weight(channels, each, *kernel)
    return writer.add("ConvTranspose", [data, weight, *_bias(writer, group * each)], **attributes)


def average_pool(writer: Writer, data: Value) -> Value:
    kernel = [writer.pick([1, min(2, size), min(3, size)]) for size in data.shape[2:]]
    attributes = {"kernel_shape": kernel, "count_include_pad": writer.pick([0, 1])}
    attributes.update(_window(writer, data.shape[2:], kernel, dilated=False))
    if writer.opset >= 10 and "auto_pad" not in attributes:
        attributes["ceil_mode"] = writer.pick([0, 1])
    return writer.add("AveragePool", [data], **attributes)


def max_pool(writer: Writer, data: Value) -> Value:
    kernel = [writer.pick([1, min(2, size)]) for size in data.shape[2:]]
    return writer.add("MaxPool", [data], outputs=writer.pick([1, 2] if writer.opset >= 8 else [1]), kernel_shape=kernel)


def normalization(writer: Writer, data: Value) -> Value:
    parts = [writer.weight(data.shape[1], low=low) for low in (-1, -1, -1, 0.5)]
    return writer.add("BatchNormalization", [data, *parts])


def arithmetic(writer: Writer, data: Value) -> Value:
    tail = [1] * (data.rank - 2)
    shape = writer.pick([(), (1,), (data.shape[1], *tail), (1, data.shape[1], *tail)])
    constant = writer.weight(*shape, low=0.3)
    op = writer.pick(["Mul", "Add", "Sub", "Div"])
    operands = [data, constant]
    return writer.add(op, operands[::-1] if op != "Div" and writer.flag() else operands)


def activation(writer: Writer, data: Value) -> Value:
    plain = ["Relu", "Sigmoid", "Tanh", "LeakyRelu", "Softplus"]
    op = writer.pick([*plain, "Clip", *(["HardSwish"] if writer.opset >= 14 else [])])
    if op != "Clip":
        return writer.add(op, [data])
    if writer.opset < 11:
        return writer.add("Clip", [data], min=0.0, max=6.0)
    low, high = (
        writer.constant(np.array(bound, writer.dtype)) for bound in (writer.pick([0, -1]), writer.pick([1, 6]))
    )
    return writer.add("Clip", [data, *writer.pick([[low], [low, high], ["", high]])])


def matmul(writer: Writer, data: Value) -> Value:
    out = writer.pick([1, 3, 4])
    result = writer.add("MatMul", [data, writer.weight(data.shape[-1], out)])
    if writer.flag():
        operands = [result, writer.weight(*writer.pick([(out,), (1, out)]))]
        result = writer.add("Add", operands[:: writer.pick([1, -1])])
    return result


def gemm(writer: Writer, data: Value) -> Value:
    out, flip = writer.pick([1, 3, 4]), writer.pick([0, 1])
    weight = writer.weight(*((out, data.shape[1]) if flip else (data.shape[1], out)))
    bias = [writer.weight(*writer.pick([(out,), (1, out), (1,), ()]))] if writer.flag() or writer.opset < 11 else []
    attributes = {"transB": flip, "alpha": writer.pick([1.0, 0.5]), "beta": writer.pick([1.0, 2.0])}
    return writer.add("Gemm", [data, weight, *bias], **attributes)


def flatten(writer: Writer, data: Value) -> Value:
    return writer.add("Flatten", [data], axis=1)


def transpose(writer: Writer, data: Value) -> Value:
    return writer.add("Transpose", [data], perm=[0, *range(data.rank - 1, 0, -1)])


def identities(writer: Writer, data: Value) -> Value:
    for _ in range(writer.pick([1, 2])):
        data = writer.add("Identity", [data])
    return data


def dropout(writer: Writer, data: Value) -> Value:
    return writer.add("Dropout", [data], outputs=writer.pick([1, 2]))


def join(writer: Writer, data: Value) -> Value:
    """With another tensor of the same shape, or with itself."""
    others = [value for value in writer.values if value.shape == data.shape]
    other = writer.pick(others)
    op = writer.pick(["Add", "Mul", "Concat", "Sum"])
    return writer.add(op, [data, other], **({"axis": 1} if op == "Concat" else {}))


def split(writer: Writer, data: Value) -> Value:
    """In two, of which the second may stay unread."""
    size = data.shape[1]
    if size < 2:
        return identities(writer, data)
    parts = [1, size - 1]
    if writer.opset < 13:
        first = writer.add("Split", [data], outputs=2, axis=1, split=parts)
    else:
        first = writer.add("Split", [data, writer.constant(np.array(parts, np.int64))], outputs=2, axis=1)
    second = Value(writer.nodes[-1].output[1], (*data.shape[:1], size - 1, *data.shape[2:]))
    if writer.flag():
        writer.values.insert(-1, second)
        return writer.add("Concat", [second, first], axis=1)
    return first


def global_pool(writer: Writer, data: Value) -> Value:
    return writer.add(writer.pick(["GlobalAveragePool", "GlobalMaxPool"]), [data])


def softmax(writer: Writer, data: Value) -> Value:
    return writer.add("Softmax", [data], axis=data.rank - 1)


def reshape(writer: Writer, data: Value) -> Value:
    """The last two axes made one, and a new last axis."""
    shape = [0] * (data.rank - 2) + [-1, 1]
    return writer.add("Reshape", [data, writer.constant(np.array(shape, np.int64))])


def mean(writer: Writer, data: Value) -> Value:
    axis = data.rank - 1
    if writer.opset >= 18:
        return writer.add("ReduceMean", [data, writer.constant(np.array([axis], np.int64))])
    return writer.add("ReduceMean", [data], axes=[axis])


def pad(writer: Writer, data: Value) -> Value:
    pads = [0] * (2 * data.rank - 1) + [1]
    if writer.opset < 11:
        return writer.add("Pad", [data], pads=pads, value=writer.pick([0.0, 1.0]))
    number = [writer.constant(np.array(1, writer.dtype))] if writer.flag() else []
    return writer.add("Pad", [data, writer.constant(np.array(pads, np.int64)), *number])


def branch(writer: Writer, data: Value) -> Value:
    """An If whose branches hold a layer that reads weights of the outer graph."""
    keep, weight = writer.tensor_name(), writer.weight(data.shape[-1], data.shape[-1])
    writer.initializers.append(helper.make_tensor(keep, TensorProto.BOOL, [], [writer.flag()]))
    bodies = []
    for op in ("MatMul", writer.pick(["MatMul", "Identity"])):
        inner = writer.tensor_name()
        node = helper.make_node(op, [data.name, weight][: 2 if op == "MatMul" else 1], [inner], name=f"in_{inner}")
        info = helper.make_tensor_value_info(inner, writer.type_of(inner), data.shape)
        bodies.append(helper.make_graph([node], "body", [], [info]))
    return _controlled(writer, "If", [keep], data, then_branch=bodies[0], else_branch=bodies[1])


def loop(writer: Writer, data: Value) -> Value:
    """A Loop that multiplies twice; its weight lies inside or outside."""
    count, keep = writer.tensor_name(), writer.tensor_name()
    writer.initializers.append(helper.make_tensor(count, TensorProto.INT64, [], [2]))
    writer.initializers.append(helper.make_tensor(keep, TensorProto.BOOL, [], [True]))
    weight = writer.weight(data.shape[-1], data.shape[-1])
    step, on, state, still, result = (writer.tensor_name() for _ in range(5))
    inputs = [
        helper.make_tensor_value_info(step, TensorProto.INT64, []),
        helper.make_tensor_value_info(on, TensorProto.BOOL, []),
        helper.make_tensor_value_info(state, writer.type_of(state), data.shape),
    ]
    outputs = [
        helper.make_tensor_value_info(still, TensorProto.BOOL, []),
        helper.make_tensor_value_info(result, writer.type_of(result), data.shape),
    ]
    nodes = [
        helper.make_node("Identity", [on], [still]),
        helper.make_node("MatMul", [state, weight], [result], name=f"in_{result}"),
    ]
    body = helper.make_graph(nodes, "body", inputs, outputs)
    return _controlled(writer, "Loop", [count, keep, data.name], data, body=body)


def _controlled(writer: Writer, op: str, inputs: list[str], data: Value, **bodies: AttributeProto) -> Value:
    result = Value(writer.tensor_name(), data.shape)
    writer.nodes.append(helper.make_node(op, inputs, [result.name], name=f"control_{result.name}", **bodies))
    writer.values.append(result)
    return result


def _window(writer: Writer, sizes: tuple[int, ...], kernel: list[int], *, dilated: bool = True) -> dict[str, object]:
    """Strides, dilations and padding under which every window keeps a place."""
    attributes: dict[str, object] = {}
    if writer.flag():
        attributes["strides"] = [writer.pick([1, 2]) for _ in sizes]
    way = writer.pick(["none", "pads", "SAME_UPPER", "SAME_LOWER", "VALID", "dilations"])
    if way == "pads":
        attributes["pads"] = [writer.pick([0, (size - 1)]) for size in kernel * 2]
    elif way == "dilations" and dilated and all(2 * (k - 1) + 1 <= size for k, size in zip(kernel, sizes, strict=True)):
        attributes["dilations"] = [2] * len(sizes)
    elif way not in ("none", "dilations"):
        attributes["auto_pad"] = way
    return attributes


def _bias(writer: Writer, channels: int) -> list[str]:
    way = writer.pick(["none", "empty", "bias"])
    if way == "bias":
        return [writer.weight(channels)]
    return [""] if way == "empty" else []


def _bias_behind(writer: Writer, result: Value) -> Value:
    if not writer.pick([False, False, True]):
        return result
    return writer.add("Add", [result, writer.weight(1, result.shape[1], *[1] * (result.rank - 2))])


SPATIAL = (conv, conv, conv, transposed, average_pool, max_pool, global_pool, normalization, normalization)
_PLAIN = (activation, activation, softmax, mean, pad, reshape, identities, dropout, transpose)
ANY = (*_PLAIN, arithmetic, arithmetic, matmul, join, split)
CONTROL = (branch, loop)
