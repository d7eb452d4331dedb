"""Tiny models for hostile tests."""

import numpy as np
from onnx import TensorProto, helper, numpy_helper

FLOAT = TensorProto.FLOAT


def value(name, shape, kind=FLOAT):
    return helper.make_tensor_value_info(name, kind, shape)


def model(nodes, inputs, outputs, constants=None, opset=17, domains=()):
    initializers = [numpy_helper.from_array(np.asarray(array), name) for name, array in (constants or {}).items()]
    graph = helper.make_graph(nodes, "g", inputs, outputs, initializers)
    imports = [helper.make_opsetid("", opset), *(helper.make_opsetid(domain, 1) for domain in domains)]
    return helper.make_model(graph, opset_imports=imports, ir_version=8)


def random(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def conv_net(weight=None, bias=None):
    """Two convolutions with a Relu between: ``conv``, ``relu``, ``last``; input x [N, 3, 8, 8]."""
    weight = random(4, 3, 3, 3) * np.float32(0.3) if weight is None else weight
    constants = {"w": weight, "w2": random(2, len(weight), 3, 3, seed=1) * np.float32(0.3)}
    if bias is not None:
        constants["b"] = bias
    nodes = [
        helper.make_node("Conv", ["x", "w", *(["b"] if bias is not None else [])], ["c"], name="conv", pads=[1] * 4),
        helper.make_node("Relu", ["c"], ["r"], name="relu"),
        helper.make_node("Conv", ["r", "w2"], ["y"], name="last"),
    ]
    return model(nodes, [value("x", ["N", 3, 8, 8])], [value("y", ["N", 2, 6, 6])], constants)


def product_net(nodes=(), extra_inputs=(), extra_outputs=(), feed="x", **options):
    """One MatMul, ``mm``, of `feed` [N, 6] with a constant, behind `nodes`."""
    product = helper.make_node("MatMul", [feed, "w"], ["y"], name="mm")
    constants = {"w": random(6, 5), **options.pop("constants", {})}
    inputs = [*([value("x", ["N", 6])] if options.pop("has_x", True) else []), *extra_inputs]
    return model([*nodes, product], inputs, [value("y", None), *extra_outputs], constants, **options)


FEED = random(2, 3, 8, 8, seed=2)
